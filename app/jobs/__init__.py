"""Work outside the page: worker processes for long jobs, a worker thread for short ones."""
