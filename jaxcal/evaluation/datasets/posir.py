"""PosIR: ten languages and 31 domains, questions with the exact span of their answer.

Data: infgrad/PosIR-Benchmark-v1; protocol: the scripts of Ziyang1060/PosIR.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation.datasets.base import Benchmark, PositionDataset, Task
from jaxcal.evaluation.datasets.rows import (
    BadField,
    Policy,
    Refusals,
    Source,
    enter,
    hub_source,
    known_of,
    list_of,
    local_source,
    read_rows,
    text_of,
    whole_of,
)

logger = logging.getLogger("jaxcal")

REPOSITORY = "infgrad/PosIR-Benchmark-v1"
LANGUAGES = {
    code[:3]: code
    for code in (
        *("ara-Arab", "cmn-Hans", "deu-Latn", "eng-Latn", "fra-Latn"),
        *("ita-Latn", "kor-Kore", "por-Latn", "rus-Cyrl", "spa-Latn"),
    )
}
# Languages whose questions are also asked of the English passages. Chinese is not among them.
CROSS_LINGUAL = ("ara", "deu", "fra", "ita", "kor", "por", "rus", "spa")
POSIR_INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
"""What PosIR's eval.py puts before the queries of every model, bge-m3 and gte included, with the space at its end. A
newer script does so for Qwen3 alone. Which of them made the published figures is not known."""

DOMAINS = 31
BINS = 20  # of the answer's relative position
_GROUPS = tuple(f"{i / BINS:.2f}-{(i + 1) / BINS:.2f}" for i in range(BINS))
# Lengths in tokens up to which a bucket reaches. Fixed bounds, not quartiles, in spite of the names.
_BUCKETS = {"Q1": 512, "Q2": 1024, "Q3": 1536, "Q4": None}
_DEPTH = 1000


def load_posir(
    folder: str | None = None,
    *,
    languages: Sequence[str] | None = None,
    domains: Sequence[str] | None = None,
    cross_lingual: bool = True,
    revision: str | None = None,
    malformed: Policy = "stop",
    local_files_only: bool = False,
) -> Benchmark:
    """Load PosIR: a task for each language, and for each cross-lingual pair with English passages.

    A task has one data set a domain, searched in its own passages; their judgements are pooled. Groups are 20 bins of
    the answer's relative position, buckets are passage lengths. The averages over tasks, unweighted, are of those
    languages that were chosen.

    Args:
        folder: a local copy of the hub's infgrad/PosIR-Benchmark-v1.
        languages: codes such as "deu" or "deu-Latn"; all ten by default.
        domains: all by default.
        cross_lingual: whether pairs such as deu-eng take part.
        revision: branch, tag or commit on the hub.
        malformed: "stop" at a malformed row, or "skip" it; skipped rows are counted.
        local_files_only: never touch the network.

    Raises:
        InvalidSetting: a language or domain that the data does not have.
        InvalidInput: a domain lacks a file; or, when a task is loaded, a malformed row, with file, row and field.
        CheckpointNotFound: the hub's files cannot be had.
    """
    if folder is not None:
        if revision is not None:
            raise InvalidSetting("revision is of the hub's files; leave it out where `folder` gives local ones.")
        source = local_source(folder)
    else:
        source = hub_source(REPOSITORY, revision=revision, local_files_only=local_files_only)
    chosen = _languages(languages)
    present = _domains(source, domains)
    pairs = [(language, language) for language in chosen]
    if cross_lingual:
        pairs += [(language, "eng") for language in chosen if language in CROSS_LINGUAL]
    tasks, used = [], set()
    for asked, passages in pairs:
        codes = (LANGUAGES[asked], LANGUAGES[passages])
        shared = [domain for domain in present[codes[0]] if domain in present[codes[1]]]
        if not shared:
            raise InvalidInput(f"{source.where} has no domain with {codes[0]} queries and {codes[1]} passages.")
        if domains is None and len(shared) < DOMAINS:
            logger.warning("PosIR %s-%s: %d of %d domains are there", asked, passages, len(shared), DOMAINS)
        for domain in shared:
            used |= set(_files(codes, domain).values())
        tasks.append(_task(source, codes, shared, malformed))
    missing = sorted(used - set(source.names))
    if missing:
        raise InvalidInput(f"{source.where} lacks {', '.join(missing[:8])}; get all files of the chosen domains.")
    averages = {
        "multilingual": tuple(task.subset for task in tasks if len(task.languages) == 1),
        "cross-lingual": tuple(task.subset for task in tasks if len(task.languages) == 2),
    }
    return Benchmark(
        name="PosIR",
        split="test",
        source=source.origin(sorted(used)),
        tasks=tuple(tasks),
        depth=_DEPTH,
        ties="trec",
        averages={name: subsets for name, subsets in averages.items() if len(subsets) > 1},
    )


def _languages(chosen: Sequence[str] | None) -> list[str]:
    short = [code[:3] for code in (LANGUAGES if chosen is None else chosen)]
    for given, code in zip(chosen or (), short, strict=False):
        if code not in LANGUAGES or given not in (code, LANGUAGES[code]):
            raise InvalidSetting(f"PosIR has no language {given!r}; it has {', '.join(LANGUAGES.values())}.")
    if not short:
        raise InvalidSetting("the list of languages is empty.")
    return list(dict.fromkeys(short))


def _domains(source: Source, chosen: Sequence[str] | None) -> dict[str, list[str]]:
    """The domains of each language, in order."""
    present: dict[str, list[str]] = {code: [] for code in LANGUAGES.values()}
    for name in sorted(source.names):
        language, _, rest = name.partition("/")
        domain, _, file = rest.partition("/")
        if file == "corpus.parquet" and language in present and (chosen is None or domain in chosen):
            present[language].append(domain)
    for domain in chosen or ():
        if not any(domain in domains for domains in present.values()):
            raise InvalidSetting(f"{source.where} has no domain {domain!r}.")
    return present


def _files(codes: tuple[str, str], domain: str) -> dict[str, str]:
    """Queries and judgements of the first language, passages of the second."""
    return {
        "queries": f"{codes[0]}/{domain}/queries.parquet",
        "qrels": f"{codes[0]}/{domain}/qrels/test.parquet",
        "corpus": f"{codes[1]}/{domain}/corpus.parquet",
    }


def _task(source: Source, codes: tuple[str, str], domains: Sequence[str], malformed: Policy) -> Task:
    def load() -> list[PositionDataset]:
        return [_dataset(source, _files(codes, domain), domain, malformed) for domain in domains]

    return Task(f"{codes[0][:3]}-{codes[1][:3]}", tuple(dict.fromkeys(codes)), load, tuple(domains))


def _dataset(source: Source, files: Mapping[str, str], domain: str, malformed: Policy) -> PositionDataset:
    refusals = Refusals(malformed)
    counts: dict[str, int] = dict.fromkeys(("queries read", "without a judgement", "passages"), 0)
    passages: dict[str, str] = {}
    for number, row in read_rows(source.fetch(files["corpus"])):
        with refusals.row(files["corpus"], number):
            enter(passages, text_of(row, "_id"), text_of(row, "text"))
    queries: dict[str, tuple[str, int, int]] = {}
    for number, row in read_rows(source.fetch(files["queries"])):
        counts["queries read"] += 1
        with refusals.row(files["queries"], number):
            enter(queries, text_of(row, "_id"), (text_of(row, "text"), *place(row)))
    gold = _read_qrels(source, files["qrels"], queries, passages, refusals)
    asked = [identity for identity in queries if identity in gold]
    counts["without a judgement"] = len(queries) - len(asked)
    counts |= {"refused": refusals.count, "passages": len(passages), "queries used": len(asked)}
    index = {identity: number for number, identity in enumerate(passages)}
    return PositionDataset(
        name=domain,
        queries=tuple(queries[identity][0] for identity in asked),
        passages=tuple(passages.values()),
        groups=_GROUPS,
        query=np.arange(len(asked)),
        gold=np.array([index[gold[identity]] for identity in asked], np.int64),
        group=np.array([queries[identity][1] for identity in asked], np.int64),
        query_ids=tuple(asked),
        passage_ids=tuple(passages),
        buckets=tuple(_BUCKETS),
        bucket=np.array([queries[identity][2] for identity in asked], np.int64),
        counts=counts,
    )


def _read_qrels(
    source: Source, file: str, queries: Mapping[str, Any], passages: Mapping[str, Any], refusals: Refusals
) -> dict[str, str]:
    gold: dict[str, str] = {}
    for number, row in read_rows(source.fetch(file)):
        with refusals.row(file, number):
            if whole_of(row, "score") != 1:
                raise BadField("score", f"is {row['score']}; in PosIR it is always 1")
            query, passage = known_of(row, "query-id", queries), known_of(row, "corpus-id", passages)
            if query in gold:
                raise BadField("query-id", f"{query!r} has a second passage; in PosIR each query has one")
            gold[query] = passage
    return gold


def place(row: Mapping[str, Any]) -> tuple[int, int]:
    """The bin and the length bucket of a row of queries.parquet."""
    span = list_of(row, "pos_char_span", int)
    length, tokens = whole_of(row, "pos_char_length"), whole_of(row, "pos_token_length")
    if len(span) != 2 or not 0 <= span[0] <= span[1]:
        raise BadField("pos_char_span", f"is {span}; it must be a start and an end")
    for field, value in (("pos_char_length", length), ("pos_token_length", tokens)):
        if value <= 0:
            raise BadField(field, f"is {value}; it must be positive")
    # The centre of the span, clipped to the passage. As the official ndcg_PSI_analysis.py has it, a bin holds its upper
    # bound and not its lower one; only the first holds 0 too. Whole numbers decide on a bound, so no rounding does.
    group = min(max(-(-BINS * (span[0] + span[1]) // (2 * length)) - 1, 0), BINS - 1)
    bucket = next(i for i, bound in enumerate(_BUCKETS.values()) if bound is None or tokens <= bound)
    return group, bucket
