"""Models: what there is, where it came from, how to get more."""

from collections.abc import Iterator

import streamlit as st

from app.services import datasets, models
from app.storage.models import Model
from app.ui import components
from app.ui import format as fmt
from app.ui.resources import store

POLL_SECONDS = 0.5
workspace = store()


def lineage(rows: list[Model]) -> Iterator[tuple[Model, int]]:
    """Each base model followed by what was fine-tuned from it, with its depth."""
    known = {row.id for row in rows}

    def below(parent: str | None, depth: int) -> Iterator[tuple[Model, int]]:
        for row in rows:
            own = row.parent_id if row.parent_id in known else None
            if own == parent:
                yield row, depth
                yield from below(row.id, depth + 1)

    yield from below(None, 0)


def card(model: Model, depth: int, names: dict[str, str]) -> None:
    indent = min(depth, 4) * 0.04
    place = st.columns([indent, 1 - indent])[1] if depth else st.container()
    with place.container(border=True, gap="small"):
        with st.container(horizontal=True, vertical_alignment="center"):
            arrow = ":material/subdirectory_arrow_right: " if depth else ""
            st.markdown(f"{arrow}**{fmt.plain(model.name)}**", width="content")
            st.badge(
                models.KINDS[model.kind], color="gray" if model.kind != "finetuned" else "primary"
            )
            st.space("stretch")
            links(model)
        numbers(model, names)


def links(model: Model) -> None:
    components.link("forecast", "Forecast", ":material/insights:", model=model.id)
    components.link("finetune", "Fine-tune", ":material/tune:", model=model.id)
    if model.run_id:
        components.link("runs", "Its run", ":material/monitoring:", run=model.run_id)
    if model.kind == "builtin":
        return
    if st.button("Delete", icon=":material/delete:", type="tertiary", key=f"delete-{model.id}"):
        ask_delete(model)


def ask_delete(model: Model) -> None:
    body = f"**{fmt.plain(model.name)}** and its weights in the workspace will be gone."
    body += components.listed_users(models.dependents(workspace, model.id))
    components.confirm(
        "Delete this model?", body, "Delete", lambda: models.delete(workspace, model.id, force=True)
    )


def numbers(model: Model, names: dict[str, str]) -> None:
    trained_on = names.get(model.dataset_id or "", fmt.NONE)
    if model.kind == "builtin":
        trained_on = "bundled daily bars"
    elif model.kind == "released":
        trained_on = "see its release"
    shown = {
        "Parameters": fmt.compact(model.parameters),
        "Context": f"{model.max_context:,} bars",
        "Trained on": fmt.plain(trained_on),
        "Best s1": fmt.loss(model.best_s1),
        "Best s2": fmt.loss(model.best_s2),
        "Best total": fmt.loss(model.best_total),
        "Hash": f"`{fmt.short_hash(model.model_hash)}`",
    }
    for column, (name, value) in zip(st.columns(len(shown)), shown.items(), strict=True):
        column.caption(f"{name}  \n{value}")


def released() -> None:
    st.subheader("Released weights", anchor=False)
    st.caption(
        "Larger models by the authors of Kronos, fetched once from Hugging Face; "
        "without a network you can place the files by hand."
    )
    # Asked before the rows, so that a download which ends in between is seen as a model.
    tasks = {name: models.download_task(workspace, name) for name in models.RELEASED}
    for entry, model in models.released(workspace):
        task = tasks[entry.name]
        with st.container(border=True, horizontal=True, vertical_alignment="center"):
            st.markdown(
                f"**{entry.title}** · {fmt.compact(entry.parameters)} parameters · "
                f"context {entry.max_context:,} bars  \n{entry.description}",
                width="stretch",
            )
            if model is not None:
                st.badge("Downloaded", icon=":material/check:", color="green")
            elif task is not None and task.pending:
                st.fragment(downloading, run_every=POLL_SECONDS)(entry.name)
            elif st.button("Download", icon=":material/download:", key=f"get-{entry.name}"):
                models.start_download(workspace, entry.name)
                st.rerun()
        if model is None and task is not None and task.state == "failed":
            components.show_problem(task.reason or f"{entry.title} could not be downloaded.")


def downloading(name: str) -> None:
    """How far the download is; the page is drawn again once it has ended."""
    task = models.download_task(workspace, name)
    if task is None or not task.pending:
        st.rerun()
    words = "Waiting for another download" if task.state == "queued" else "Asking for the files"
    if task.total:
        words = f"{fmt.megabytes(task.done)} of {fmt.megabytes(task.total)}"
    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        st.progress(task.done / max(task.total, 1), words, width=240)
        if st.button("Cancel", icon=":material/close:", key=f"cancel-{name}"):
            models.cancel_download(workspace, name)
            st.rerun()


def by_hand() -> None:
    with st.expander("Place files by hand or import a folder", icon=":material/folder_open:"):
        st.markdown(
            "A model is a folder with `tokenizer/` and `predictor/`, each holding `config.json` "
            "and `model.safetensors`, as on its Hugging Face page. Copy both to this machine, "
            "then give the folder's path here. A `bundle.json` with context and rotary setting "
            "is optional."
        )
        with (
            st.form("import", border=False),
            st.container(horizontal=True, vertical_alignment="bottom"),
        ):
            path = st.text_input("Folder on this machine", placeholder="folder with both parts")
            name = st.text_input("Name in the workbench", width=240)
            wanted = st.form_submit_button("Import", icon=":material/drive_folder_upload:")
        if wanted:
            with components.problems():
                models.import_folder(workspace, path.strip(), name.strip())
                st.rerun()


def card_of_nano() -> None:
    nano = next((row for row in stored if row.kind == "builtin"), None)
    if nano is not None:
        card_place = st.expander(f"Model card of {nano.name}", icon=":material/description:")
        with card_place, components.problems():
            st.markdown(models.model_card(workspace, nano))


components.page_title("Models", "Base models, and below each what was fine-tuned from it.")
stored = models.list_models(workspace)
trained_names = {row.id: row.name for row in datasets.list_datasets(workspace)}
if not stored:
    components.show_problem(
        "No model is there, not even the built-in one. Import a folder below, or reinstall."
    )
for entry_model, level in lineage(stored):
    card(entry_model, level, trained_names)
card_of_nano()
released()
by_hand()
