"""SQuAD-PosQ, and documents joined from SQuAD's paragraphs.

SQuAD-PosQ is SQuAD 2.0 asked as a retrieval data set, with questions grouped by where in the passage the answer starts
(Zeng et al., arXiv 2505.13950; script exp_SQuAD-PosQ.py of NovaSearch-Team/position-bias-in-IR).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxcal.errors import InvalidInput
from jaxcal.evaluation.datasets.base import THIRDS, Benchmark, PositionDataset, Task
from jaxcal.evaluation.datasets.rows import (
    BadField,
    Policy,
    Refusals,
    Source,
    columns,
    find_files,
    flag_of,
    list_of,
    local_source,
    mapping_of,
    parse_json,
    read_rows,
    text_of,
    whole_of,
)

REPOSITORY = "rajpurkar/squad_v2"
_SPLITS = (("*train-*.parquet", "*train-*.json"), ("*validation-*.parquet", "*dev-*.json"))
# Bins of the answer's first character. Quirk: both ends count, so a start of exactly 100 stands in two bins, and its
# question is scored twice.
BINS = ((0, 100), (100, 200), (200, 300), (300, 400), (400, 500), (500, 3120))


class _Question(NamedTuple):
    """A question with its context; start is None where it cannot be answered."""

    id: str
    context: str
    text: str
    start: int | None


def load_squad_posq(
    files: Sequence[str] | str | None = None,
    *,
    revision: str | None = None,
    malformed: Policy = "stop",
    local_files_only: bool = False,
) -> Benchmark:
    """Load SQuAD-PosQ: all contexts are passages, answerable questions are queries, in bins of the answer's start.

    Args:
        files: local copies instead of the hub's rajpurkar/squad_v2: SQuAD's own JSON (versions 1 and 2), or rows in the
            hub's layout (.parquet, .jsonl). Order counts: train before validation. Or a folder with both.
        revision: branch, tag or commit on the hub.
        malformed: "stop" at a malformed row, or "skip" it; skipped rows are counted.
        local_files_only: never touch the network.

    Raises:
        InvalidInput: a malformed row, with file, row and field.
        CheckpointNotFound: the hub's files cannot be had.
    """
    source, names = find_files(files, REPOSITORY, _SPLITS, revision=revision, local_files_only=local_files_only)
    return Benchmark(
        name="SQuAD-PosQ",
        split="train+validation",
        source=source.origin(names),
        tasks=(Task("default", ("eng-Latn",), lambda: [_by_start(source, names, malformed)]),),
    )


def _by_start(source: Source, names: Sequence[str], malformed: Policy) -> PositionDataset:
    refusals = Refusals(malformed)
    passages: dict[str, int] = {}
    queries: dict[str, int] = {}  # by text
    gold: dict[str, int] = {}
    ids: list[str] = []
    asked: list[tuple[str, int]] = []
    counts: dict[str, int] = dict.fromkeys(("questions read", "answerable", "unanswerable", "beyond the last bin"), 0)
    for question in _questions(source, names, refusals):
        counts["questions read"] += 1
        # Quirk: contexts of questions without an answer are passages too.
        passage = passages.setdefault(question.context, len(passages))
        if question.start is None:
            counts["unanswerable"] += 1
            continue
        counts["answerable"] += 1
        if question.text not in queries:
            queries[question.text] = len(queries)
            ids.append(question.id)
        # Quirk: the gold passage is looked up by the question's text, so a question that is asked of several contexts
        # looks for the last of them, in the bin of each.
        gold[question.text] = passage
        if question.start > BINS[-1][1]:
            counts["beyond the last bin"] += 1
        else:
            asked.append((question.text, question.start))
    judged = [
        (queries[text], gold[text], group)
        for text, start in asked
        for group, (low, high) in enumerate(BINS)
        if low <= start <= high
    ]
    counts |= {"refused": refusals.count, "passages": len(passages), "different queries": len(queries)}
    counts["questions read"] += refusals.count
    counts["in two bins"] = len(judged) - len(asked)
    return PositionDataset(
        name="SQuAD-PosQ",
        queries=tuple(queries),
        passages=tuple(passages),
        groups=tuple(f"{low}-{high}" for low, high in BINS),
        **columns(judged),
        query_ids=tuple(ids),
        counts=counts,
    )


# --- documents of several paragraphs ----------------------------------------------------------------------------------


def load_squad_long(
    files: Sequence[str] | str,
    count_tokens: Callable[[Sequence[str]], Iterable[int]],
    *,
    max_tokens: int = 500,
    language: str = "eng-Latn",
    called: str = "SQuAD-long",
    malformed: Policy = "stop",
) -> Benchmark:
    """Load paragraphs of SQuAD-format JSON joined into documents, with questions by thirds of the document.

    The paragraphs of one article are joined by a newline, in order, while the sum of their tokens stays within
    `max_tokens`. A longer paragraph is left out with its questions, and ends the document before it. The relative start
    of an answer is (characters before it) / (characters of the document), a newline counted after every paragraph.

    Args:
        files: SQuAD's own JSON, versions 1 and 2, such as XQuAD's files.
        count_tokens: tokens of texts with special tokens, nothing truncated.
        max_tokens: of a document.
        language: of the texts, for results.
        called: what results call the data set.
        malformed: "stop" at a malformed row, or "skip" it.

    Raises:
        InvalidInput: a malformed row, with file, row and field.
    """
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise InvalidInput(f"max_tokens is {max_tokens!r}; a document needs at least one.")
    source = local_source(files)

    def load() -> list[PositionDataset]:
        return [_joined(source, count_tokens, max_tokens, called, Refusals(malformed))]

    tasks = (Task("default", (language,), load),)
    return Benchmark(name=called, split="test", source=source.origin(source.names), tasks=tasks)


class _Document(NamedTuple):
    paragraphs: list[str]
    questions: list[tuple[str, str, int]]  # id, text, characters before the answer


def _joined(
    source: Source, count_tokens: Callable[[Sequence[str]], Iterable[int]], limit: int, name: str, refusals: Refusals
) -> PositionDataset:
    counts: dict[str, int] = dict.fromkeys(
        ("paragraphs read", "paragraphs too long", "questions of those", "unanswerable"), 0
    )
    documents: list[_Document] = []
    known: set[str] = set()
    for file in source.names:
        for article in _articles(source.fetch(file)):
            documents += _documents(article, file, count_tokens, limit, counts, refusals, known)
    judged, queries, ids = [], [], []
    for number, document in enumerate(documents):
        total = sum(len(paragraph) + 1 for paragraph in document.paragraphs)
        for identity, text, before in document.questions:
            judged.append((len(queries), number, min(3 * before // total, 2)))
            queries.append(text)
            ids.append(identity)
    counts |= {"refused": refusals.count, "documents": len(documents), "questions used": len(queries)}
    return PositionDataset(
        name=name,
        queries=tuple(queries),
        passages=tuple("\n".join(document.paragraphs) for document in documents),
        groups=THIRDS,
        **columns(judged),
        query_ids=tuple(ids),
        counts=counts,
    )


def _documents(
    article: "_Article",
    file: str,
    count_tokens: Callable[[Sequence[str]], Iterable[int]],
    limit: int,
    counts: dict[str, int],
    refusals: Refusals,
    known: set[str],
) -> list[_Document]:
    """The documents of one article; `known` gathers the ids of all questions."""
    paragraphs = []
    for where, paragraph in article.paragraphs:
        with refusals.row(file, where):
            paragraphs.append((where, text_of(paragraph, "context"), list_of(paragraph, "qas", dict)))
    documents: list[_Document] = []
    current, size = _Document([], []), 0
    for (where, context, qas), tokens in zip(paragraphs, count_tokens([p[1] for p in paragraphs]), strict=True):
        counts["paragraphs read"] += 1
        if size + tokens > limit and current.paragraphs:
            documents.append(current)
            current, size = _Document([], []), 0
        if tokens > limit:
            counts["paragraphs too long"] += 1
            counts["questions of those"] += len(qas)
            continue
        before = sum(len(paragraph) + 1 for paragraph in current.paragraphs)
        current.paragraphs.append(context)
        size += tokens
        for number, qa in enumerate(qas, 1):
            with refusals.row(file, f"{where}, question {number}"):
                question = _question(qa, context)
                if question.id in known:
                    raise BadField("id", f"is {question.id!r} for the second time")
                known.add(question.id)
                if question.start is None:
                    counts["unanswerable"] += 1
                else:
                    current.questions.append((question.id, question.text, before + question.start))
    return [*documents, current] if current.paragraphs else documents


# --- reading ----------------------------------------------------------------------------------------------------------


class _Article(NamedTuple):
    paragraphs: list[tuple[str, Mapping[str, Any]]]  # with where they stand


def _articles(path: Path) -> Iterator[_Article]:
    """The articles of a file in SQuAD's own layout."""
    try:
        content = parse_json(path.read_text(encoding="utf-8-sig"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.") from None
    data = content.get("data") if isinstance(content, dict) else None
    if not isinstance(data, list):
        raise InvalidInput(f'{path} is not in SQuAD\'s layout: it has no list "data".')
    for number, article in enumerate(data, 1):
        paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
        if not isinstance(paragraphs, list) or not all(isinstance(paragraph, dict) for paragraph in paragraphs):
            raise InvalidInput(f'{path}, article {number}, field "paragraphs": must be a list of objects.')
        yield _Article([(f"{number}.{index}", paragraph) for index, paragraph in enumerate(paragraphs, 1)])


def _questions(source: Source, names: Sequence[str], refusals: Refusals) -> Iterator[_Question]:
    """All questions in order, from SQuAD's own layout or from rows of the hub's."""
    texts: dict[str, str] = {}  # by id
    for name in names:
        path = source.fetch(name)
        if path.suffix.lower() != ".json":
            for number, row in read_rows(path):
                with refusals.row(name, number):
                    yield _identified(_row(row), texts)
            continue
        for article in _articles(path):
            for where, paragraph in article.paragraphs:
                context, qas = None, []
                with refusals.row(name, where):
                    context, qas = text_of(paragraph, "context"), list_of(paragraph, "qas", dict)
                for index, qa in enumerate(qas, 1):
                    with refusals.row(name, f"{where}, question {index}"):
                        yield _identified(_question(qa, context or ""), texts)


def _identified(question: _Question, texts: dict[str, str]) -> _Question:
    """A question whose id no other question has; the same one may come again."""
    if texts.setdefault(question.id, question.text) != question.text:
        raise BadField("id", f"is {question.id!r}, which another question has too")
    return question


def _row(row: Mapping[str, Any]) -> _Question:
    """A row of the hub's layout, where answers are two lists."""
    context = text_of(row, "context")
    answers = mapping_of(row, "answers")
    texts, starts = list_of(answers, "text", str), list_of(answers, "answer_start", int)
    if len(texts) != len(starts):
        raise BadField("answers", f"has {len(texts)} texts and {len(starts)} starts")
    return _Question(text_of(row, "id"), context, text_of(row, "question"), _first_start(context, texts, starts))


def _question(qa: Mapping[str, Any], context: str) -> _Question:
    """A question of SQuAD's own layout, where answers are a list of objects; version 2 marks the impossible ones."""
    answers = list_of(qa, "answers", dict)
    if "is_impossible" in qa and flag_of(qa, "is_impossible"):
        answers = []
    texts = [text_of(answer, "text") for answer in answers]
    start = _first_start(context, texts, [whole_of(answer, "answer_start") for answer in answers])
    return _Question(text_of(qa, "id"), context, text_of(qa, "question"), start)


def _first_start(context: str, texts: Sequence[str], starts: Sequence[int]) -> int | None:
    """The first answer's start, in characters: it is the one that counts. All answers must stand where they say."""
    for answer, start in zip(texts, starts, strict=True):
        if start < 0 or not answer or context[start : start + len(answer)] != answer:
            raise BadField("answer_start", f"is {start}, but the answer {answer[:40]!r} does not stand there")
    return starts[0] if starts else None
