"""Made-up samples in the layouts of the official data sets, as rows and as files; none of their text is in them."""

import json
import random

import pyarrow
import pyarrow.parquet

DATASET_COMMIT = "c0" * 20  # of every repository of the made-up hub
POSIR_LANGUAGES = ("deu-Latn", "eng-Latn", "cmn-Hans")
POSIR_DOMAINS = ("law", "tea")


def sentence(rng: random.Random, words: int) -> str:
    """Words of the random checkpoints' vocabulary."""
    return " ".join(f"w{rng.randrange(70)}" for _ in range(words))


def write_parquet(path, rows: list[dict]):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def write_jsonl(path, rows: list[dict]):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


# --- SQuAD 2.0 --------------------------------------------------------------------------------------------------------


def squad_rows(count: int = 300, seed: int = 0) -> list[dict]:
    """Rows of the hub's layout: contexts with several questions, some repeated, some unanswerable, starts on bounds."""
    rng = random.Random(seed)
    contexts = [sentence(rng, rng.choice((30, 120, 300))) for _ in range(count // 4)]
    contexts.append(sentence(rng, 900))  # answers beyond the last bin
    questions = [f"Où est {sentence(rng, 5)} ?" for _ in range(count - 20)]
    questions += rng.sample(questions, 20)  # asked again, of another context
    rows = []
    for number, question in enumerate(questions):
        context = rng.choice(contexts)
        starts = rng.sample(range(len(context) - 8), rng.randint(1, 3))
        if number % 9 == 0:
            starts[0] = min(100 * rng.randint(0, 5), len(context) - 8)
        if number % 50 == 0:
            context, starts = contexts[-1], [3121 + number % 3]
        if number % 50 == 1:
            context, starts = contexts[-1], [3120]
        if number % 5 == 4:
            starts = []
        answers = {"text": [context[start : start + 7] for start in starts], "answer_start": starts}
        rows.append({"id": f"q{number}", "title": "t", "context": context, "question": question, "answers": answers})
    return rows


def squad_json(rows: list[dict], version: int = 2) -> dict:
    """The same rows as SQuAD's own JSON: consecutive rows of one context make a paragraph."""
    paragraphs: list[dict] = []
    for row in rows:
        if not paragraphs or paragraphs[-1]["context"] != row["context"]:
            paragraphs.append({"context": row["context"], "qas": []})
        pairs = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
        qa = {"id": row["id"], "question": row["question"], "answers": answers}
        if version == 2:
            qa["is_impossible"] = not answers
            if not answers:
                qa["plausible_answers"] = [{"text": row["context"][:4], "answer_start": 0}]
        paragraphs[-1]["qas"].append(qa)
    half = len(paragraphs) // 2
    return {"data": [{"title": "a", "paragraphs": paragraphs[:half]}, {"title": "b", "paragraphs": paragraphs[half:]}]}


# --- FineWeb-PosQ -----------------------------------------------------------------------------------------------------


def fineweb_rows(count: int = 300, seed: int = 0) -> list[dict]:
    """Questions with one or several classes, repeated ones, and rows that only hold a passage."""
    rng = random.Random(seed)
    contents = [sentence(rng, 40) for _ in range(count // 3)]
    rows = []
    for number in range(count):
        question = f"What about {sentence(rng, 4)}?" if number % 10 else (None, "")[number // 10 % 2]
        if number % 37 == 36:
            question = rows[number - 5]["question"]
        classes = rng.sample(["beginning", "middle", "end"], rng.choice((1, 1, 1, 2, 3)))
        rows.append({"question": question, "content": rng.choice(contents), "span_class": classes})
    return rows


# --- PosIR ------------------------------------------------------------------------------------------------------------


def posir_tables(count: int = 300, seed: int = 0) -> dict[str, list[dict]]:
    """Rows by file: `count` queries in all, over three languages and two domains; passages are shared by queries."""
    rng = random.Random(seed)
    tables: dict[str, list[dict]] = {}
    corpus = {domain: [(f"{domain}{i}", sentence(rng, 30)) for i in range(25)] for domain in POSIR_DOMAINS}
    share = count // (len(POSIR_LANGUAGES) * len(POSIR_DOMAINS))
    for language in POSIR_LANGUAGES:
        for domain in POSIR_DOMAINS:
            queries, qrels = [], []
            for i in range(share):
                length = rng.randint(50, 9000)
                start = rng.randint(0, length - 1)
                end = rng.randint(start, length + (40 if i % 7 == 0 else 0))  # a few reach beyond the passage
                queries.append(
                    {
                        "_id": f"{language}-{domain}-{i}",
                        "text": sentence(rng, 6),
                        "pos_char_span": [start, end],
                        "pos_char_length": length,
                        "pos_token_length": rng.choice((1, 511, 512, 513, 1024, 1025, 1536, 1537, 4000)),
                    }
                )
                passage = rng.choice(corpus[domain])[0]
                qrels.append({"query-id": queries[-1]["_id"], "corpus-id": passage, "score": 1})
            rng.shuffle(qrels)
            place = f"{language}/{domain}"
            tables[f"{place}/queries.parquet"] = queries
            tables[f"{place}/qrels/test.parquet"] = qrels
            tables[f"{place}/corpus.parquet"] = [
                {"_id": key, "text": f"{language} {text}"} for key, text in corpus[domain]
            ]
    return tables


def write_posir(folder, tables: dict[str, list[dict]]):
    for name, rows in tables.items():
        write_parquet(folder / name, rows)
    return folder
