"""jaxcal in MTEB: an encoder for its benchmarks, calibrated or not, and position-aware data sets as its tasks.

    import mteb
    from jaxcal.evaluation.mteb import JaxcalEncoder, as_mteb_task

    model = JaxcalEncoder("BAAI/bge-m3", calibration=jaxcal.Calibration())
    mteb.evaluate(model, as_mteb_task(load_squad_posq()))

Needs the extra `mteb`, which brings torch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxcal.calibration import Calibration
from jaxcal.encoder import Encoder, load
from jaxcal.errors import InvalidInput, InvalidSetting, MissingDependency
from jaxcal.evaluation.datasets.base import Benchmark, PositionDataset, Ties
from jaxcal.evaluation.metrics import Ranks, ndcg, summarise
from jaxcal.evaluation.search import NOT_RETRIEVED
from jaxcal.evaluation.vectors import fingerprint

try:
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models.abs_encoder import get_prompt
    from mteb.models.model_meta import ModelMeta, ScoringFunction
    from mteb.similarity_functions import cos_sim, pairwise_cos_sim
    from mteb.types import PromptType
except ImportError as error:
    raise MissingDependency("jaxcal.evaluation.mteb needs mteb: install jaxcal[mteb].") from error


class JaxcalEncoder:
    """An encoder that mteb evaluates (its EncoderProtocol).

    Queries get the query prompt and documents the document prompt of the checkpoint, unless `prompts` has one for the
    task. Only documents are calibrated: queries are short, and where both sides of a comparison are alike
    (classification, similarity, clustering) nothing is to be found late in a long document.

    Args:
        model_name: hub id or folder.
        revision: branch, tag or commit of a hub id.
        device: None, or the platform JAX runs on, which is the only one there is.
        calibration: of documents; None for the model as published. mteb's cache keeps apart the results of every
            calibration, prompts, dtype and max_length: it sees them as experiment settings.
        prompts: by task name, task type, "query" or "document", or with "-query" or "-document" behind, in mteb's
            order of priority.
        dtype, max_length: as in `jaxcal.load`.
        encoder: an encoder that is loaded already, instead of model_name, revision, dtype and max_length.

    Raises:
        InvalidSetting: a device that JAX does not run on, a calibration that is none, or settings of loading beside an
            encoder that is loaded.
    """

    def __init__(
        self,
        model_name: str = "",
        revision: str | None = None,
        *,
        device: str | None = None,
        calibration: Calibration | None = None,
        prompts: Mapping[str, str] | None = None,
        dtype: str = "float32",
        max_length: int | None = None,
        encoder: Encoder | None = None,
    ):
        if device not in (None, jax.default_backend()):
            raise InvalidSetting(f"device is {device!r}, but JAX runs on {jax.default_backend()}; set JAX_PLATFORMS.")
        if calibration is not None and not isinstance(calibration, Calibration):
            raise InvalidSetting(f"calibration is {calibration!r}; it must be a jaxcal.Calibration or None.")
        if encoder is not None and (model_name, revision, dtype, max_length) != ("", None, "float32", None):
            raise InvalidSetting("encoder is loaded already; leave out model_name, revision, dtype and max_length.")
        self.encoder = encoder or load(model_name, revision=revision, dtype=dtype, max_length=max_length)
        self.calibration, self.prompts = calibration, dict(prompts or {})
        self.mteb_model_meta = self._describe()

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """Encode a DataLoader of batches with "text", in order: [N, D] float32.

        mteb's batch_size is not looked at: jaxcal makes its own batches, by tokens.

        Raises:
            InvalidSetting: mteb was asked for another precision of the vectors, which it would put in the results.
        """
        if kwargs.get("precision") not in (None, "float32"):
            raise InvalidSetting(
                f"precision is {kwargs['precision']!r}, but jaxcal's vectors are float32; leave it out."
            )
        texts = [text for batch in inputs for text in batch["text"]]
        options: dict[str, Any] = {"show_progress": bool(kwargs.get("show_progress_bar", False))}
        own = get_prompt(self.prompts, task_metadata, prompt_type)
        if prompt_type is None:
            return self.encoder.encode(texts, prompt=own, **options)
        if prompt_type == PromptType.document:
            options["calibration"] = self.calibration
        kind = "query" if prompt_type == PromptType.query else "document"
        return self.encoder.encode(texts, prompt=self.encoder.prompt(kind) if own is None else own, **options)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosine similarities of all pairs, in float32."""
        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosine similarities of corresponding rows, in float32."""
        return pairwise_cos_sim(embeddings1, embeddings2)

    def _describe(self) -> ModelMeta:
        encoder = self.encoder
        name = encoder.checkpoint.name if encoder.checkpoint else "model"
        found = fingerprint(encoder)
        local = "files" in found  # then the name is a path, and no revision stands for its content
        shapes = jax.tree.leaves(encoder.params)
        return ModelMeta(
            loader=None,
            name=f"local/{name.rstrip('/').rpartition('/')[2]}" if local else name,
            revision=found["files"][:40] if local else found["commit"],
            release_date=None,
            languages=None,
            n_parameters=sum(leaf.size for leaf in shapes),
            memory_usage_mb=sum(leaf.nbytes for leaf in shapes) / 2**20,
            max_tokens=encoder.max_length,
            embed_dim=encoder.dimension,
            license=None,
            open_weights=True,
            public_training_code=None,
            public_training_data=None,
            framework=["JAX"],
            similarity_fn_name=ScoringFunction.COSINE,
            use_instructions=bool(encoder.prompt("query")),
            training_datasets=None,
            experiment_kwargs=self._departures() or None,
        )

    def _departures(self) -> dict[str, Any]:
        """Where the vectors depart from those of the model as published: mteb's cache knows a run by nothing else."""
        encoder = self.encoder
        settled = encoder.describe(self.calibration)["calibration"] or {}
        changed = {f"calibration_{key}": value for key, value in settled.items()}
        if encoder.dtype != "float32":
            changed["dtype"] = encoder.dtype
        if encoder.max_length != min(
            encoder.settings.max_length or encoder.config.max_tokens, encoder.config.max_tokens
        ):
            changed["max_length"] = encoder.max_length
        if self.prompts:
            changed["prompts"] = self.prompts
        return changed


# --- tasks ------------------------------------------------------------------------------------------------------------


def as_mteb_task(benchmark: Benchmark) -> AbsTaskRetrieval:
    """A position-aware data set as a retrieval task of mteb, with the figures by position among its scores.

    Beside mteb's own figures, a score has "ndcg_at_10_<group>", "harmonic_mean" and "psi", with ties as the data set's
    script scores them. They are means over judgements; mteb's ndcg_at_10 counts a query of several groups once. A task
    with named parts, as PosIR has for its domains, becomes one subset a part ("deu-deu/law"), because mteb searches a
    subset as one corpus; its average over subsets counts every part alike, whereas `jaxcal evaluate` pools their
    queries first, as PosIR's script does. mteb strips white space around passages before they are encoded.

    mteb's cache knows a task by its name and takes results of any revision, so the name of local data ends in the
    digest of its files. For another revision on the hub, use another cache or `overwrite_strategy="always"`.

    Raises:
        InvalidInput: when it is loaded, a data set whose queries are judged more than once against different passages:
            mteb has no way to keep the others from competing.
    """
    places = {}  # subset -> task, number of the part
    for task in benchmark.tasks:
        for number, part in enumerate(task.parts):
            places[task.subset if part == "default" else f"{task.subset}/{part}"] = (task, number)
    single = list(places) == ["default"]
    languages = {subset: list(task.languages) for subset, (task, _) in places.items()}
    name = benchmark.name.replace(" ", "-")
    if "revision" not in benchmark.source:
        name += f"-{benchmark.revision[:8]}"
    described = TaskMetadata(
        name=name,
        description=f"{benchmark.name}: retrieval by the position of the answer in the passage.",
        reference=None,
        dataset={"path": benchmark.source.get("repository", "local/" + name), "revision": benchmark.revision},
        type="Retrieval",
        category="t2t",
        modalities=["text"],
        eval_splits=[benchmark.split],
        eval_langs=languages["default"] if single else languages,
        main_score="ndcg_at_10",
        date=None,
        domains=None,
        task_subtypes=None,
        license=None,
        annotations_creators=None,
        dialect=None,
        sample_creation=None,
        bibtex_citation=None,
    )

    class PositionTask(AbsTaskRetrieval):
        metadata = described

        def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
            """Read the data sets of the chosen subsets."""
            if self.data_loaded:
                return
            self.dataset, self.positions = {}, {}
            wanted = ["default"] if single else list(self.hf_subsets)
            loaded: dict[str, Sequence[PositionDataset]] = {}
            for subset in wanted:
                task, number = places[subset]
                if task.subset not in loaded:
                    loaded[task.subset] = task.load()
                self.positions[subset] = loaded[task.subset][number]
                self.dataset[subset] = {benchmark.split: _split(self.positions[subset])}
            self.data_loaded = True

        def task_specific_scores(
            self, scores: Any, qrels: Any, results: Any, hf_split: str, hf_subset: str
        ) -> dict[str, float]:
            """The figures by position."""
            return _position_scores(self.positions[hf_subset], results, benchmark.ties)

    return PositionTask()


def _split(dataset: PositionDataset) -> Any:
    """A data set as mteb has its parts."""
    topics = dataset.topics
    if len(np.unique(topics.query)) != len(topics.query) or len(dataset.pool) != len(dataset.passages):
        raise InvalidInput(
            f"{dataset.name} judges queries against several passages, one at a time, which mteb cannot do. Use "
            "`jaxcal evaluate`."
        )
    ids = [dataset.query_ids[query] for query in topics.query.tolist()]
    texts = [dataset.queries[query] for query in topics.query.tolist()]
    golds = [dataset.passage_ids[gold] for gold in topics.gold.tolist()]
    return {
        "corpus": Dataset.from_dict({"id": list(dataset.passage_ids), "text": list(dataset.passages)}),
        "queries": Dataset.from_dict({"id": ids, "text": texts}),
        "relevant_docs": {query: {gold: 1} for query, gold in zip(ids, golds, strict=True)},
        "top_ranked": None,
    }


def _position_scores(
    dataset: PositionDataset, results: Mapping[str, Mapping[str, float]], ties: Ties
) -> dict[str, float]:
    above, tied = [], []
    for query, gold in zip(dataset.topics.query.tolist(), dataset.topics.gold.tolist(), strict=True):
        name, found = dataset.passage_ids[gold], results.get(dataset.query_ids[query], {})
        before, equal = NOT_RETRIEVED, 0
        if name in found:
            own, values = found[name], np.array(list(found.values()))
            before, equal = int((values > own).sum()), int((values == own).sum()) - 1
            if ties == "trec" and equal:  # quirk of trec_eval: equal similarities stand in descending order of id
                before, equal = before + sum(value == own and other > name for other, value in found.items()), 0
        above.append(before)
        tied.append(equal)
    scores = ndcg(Ranks(np.array(above), np.array(tied)), 10)[dataset.topics.of_judgement]
    summary = summarise({name: values for name, values in dataset.by_group(scores).items() if values.size})
    groups = {f"ndcg_at_10_{name}": value for name, value in summary.groups.items()}
    return {**groups, "harmonic_mean": summary.harmonic_mean, "psi": summary.psi}
