"""What a person sees: figures, formatting and components shared by the pages."""
