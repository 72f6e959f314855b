"""Labeler and filter: inputs, losses and scores, worked out by hand."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

import math

import pytest

from tests.conftest import need

torch = need("torch", "transformers", "accelerate")
from transformers import BertConfig, BertModel

from service.encoders.base import Tag
from service.encoders.checkpoint import INPUTS, TAGS, TOKENS
from service.text.wordpiece import minilm_tokenizer
from service.workshop.recipes.labels import (
    IGNORED,
    FilterSettings,
    LabelerSettings,
    LabelNetwork,
    collate,
    filter_input,
    filter_scores,
    labeler_input,
    labeler_scores,
    loss_of,
)
from service.workshop.rows import FilterRow, LabelerRow, RowProvenance

SOURCE = RowProvenance(pipeline="efficientrag", teacher="rules", item="1")
TINY = BertConfig(
    vocab_size=30522, hidden_size=24, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=256, max_position_embeddings=64,
)  # fmt: skip


LABELER = LabelerSettings(longest=64)


def network(**heads: object) -> LabelNetwork:
    torch.manual_seed(0)
    settings = LabelerSettings.model_validate({"freeze_embeddings": False, **heads})
    return LabelNetwork(BertModel(TINY), settings).eval()


def labeler_row(**changes: object) -> LabelerRow:
    row = {
        "id": "1", "question": "Who composed Norma?", "query": "Who composed Norma?",
        "passage": "Norma: By Bellini.", "words": ["Norma", ":", "By", "Bellini", "."],
        "labels": [1, 0, 0, 1, 0], "tag": "finish", "provenance": SOURCE,
    }  # fmt: skip
    return LabelerRow.model_validate({**row, **changes})


def test_pieces_inherit_the_label_of_their_word() -> None:
    made = labeler_input(minilm_tokenizer(), labeler_row(), LABELER)
    tokenizer = minilm_tokenizer()
    marked = [
        tokenizer.id_to_token(i)
        for i, m in zip(made["input_ids"], made["token_labels"], strict=True)
        if m
    ]
    assert marked == ["norma", "bell", "##ini"]
    assert made["tags"] == Tag.FINISH
    assert len(made["input_ids"]) == len(made["token_labels"]) == len(made["token_type_ids"])


def test_with_two_tags_what_finishes_goes_on() -> None:
    assert (
        labeler_input(minilm_tokenizer(), labeler_row(), LabelerSettings(tags=2))["tags"]
        == Tag.CONTINUE
    )


def test_an_info_cut_to_fit_loses_its_labels_with_its_words() -> None:
    infos = ["alpha beta gamma delta", "Bellini"]
    words = ["Who", "?", *infos[0].split(), "Bellini"]
    row = FilterRow(
        id="1", question="Who?", query="Who?", infos=infos, words=words,
        labels=[1, 0, 0, 0, 0, 1, 1], provenance=SOURCE,
    )  # fmt: skip
    whole = filter_input(minilm_tokenizer(), row, FilterSettings(longest=64))
    short = filter_input(
        minilm_tokenizer(), row, FilterSettings.model_construct(longest=len(whole["input_ids"]) - 2)
    )
    assert sum(whole["token_labels"]) == 4  # Who, delta, bell, ##ini
    assert sum(short["token_labels"]) == 3  # without delta


def test_padding_counts_nothing() -> None:
    rows = [
        labeler_input(
            minilm_tokenizer(), labeler_row(passage=text, words=words, labels=[1] * n), LABELER
        )
        for text, words, n in (("Norma", ["Norma"], 1), ("Norma by", ["Norma", "by"], 2))
    ]
    batch = collate(rows)
    assert batch["token_labels"][0, -1] == IGNORED
    assert batch["attention_mask"].sum(1).tolist() == [len(row["input_ids"]) for row in rows]
    alone = collate(rows[:1])
    model = network()
    read = {name: batch[name][:1] for name in (*INPUTS, "token_labels", "tags")}
    padded = model(**read)["loss"]
    assert padded.item() == pytest.approx(model(**alone)["loss"].item(), abs=1e-5)


def made(tags: list[list[float]]) -> dict[str, torch.Tensor]:
    tokens = torch.tensor([[[0.0, 1.0], [0.0, 5.0]]] * len(tags))
    return {TOKENS: tokens, TAGS: torch.tensor(tags)}


def test_tokens_of_a_passage_that_does_not_serve_are_not_learnt() -> None:
    labels = torch.tensor([[0, 0], [0, 0]])
    sure = made([[9.0, -9, -9], [-9.0, 9, -9]])
    served, silent = (
        loss_of(sure, labels, torch.tensor(tags), LabelerSettings())
        for tags in ([Tag.CONTINUE, Tag.TERMINATE], [Tag.TERMINATE, Tag.TERMINATE])
    )
    tokens = (math.log(1 + math.e) + math.log(1 + math.e**5)) / 2
    assert served.item() == pytest.approx(tokens, abs=1e-3)
    assert silent.item() == pytest.approx(18 / 2, abs=1e-3)  # the tag of the first, alone


def test_the_published_mask_goes_by_the_predicted_tag() -> None:
    labels = torch.tensor([[0, 0]])
    sure = made([[-9.0, 9, -9]])
    gold = loss_of(sure, labels, torch.tensor([Tag.FINISH]), LabelerSettings())
    published = loss_of(sure, labels, torch.tensor([Tag.FINISH]), LabelerSettings(mask="predicted"))
    assert published.item() == pytest.approx(18, abs=1e-3)
    assert gold.item() > published.item() + 1


def test_where_nothing_serves_the_loss_is_a_number_and_has_a_gradient() -> None:
    model = network()
    row = labeler_row(tag="terminate", labels=[0] * 5)
    batch = collate([labeler_input(minilm_tokenizer(), row, LABELER)])
    loss = model(**batch)["loss"]
    assert torch.isfinite(loss)
    loss.backward()
    assert model.tag_head.weight.grad is not None


def test_class_weights_weigh_the_useful_words_only() -> None:
    labels, tags = torch.tensor([[1, 0]]), torch.tensor([Tag.FINISH])
    logits = made([[0.0, 0, 0]])
    plain = loss_of(logits, labels, tags, LabelerSettings())
    heavy = loss_of(logits, labels, tags, LabelerSettings(token_weights=(0.51, 25.32)))
    right, wrong = math.log(1 + math.exp(-1)), math.log(1 + math.e**5)
    expected = (25.32 * right + 0.51 * wrong) / (25.32 + 0.51)
    assert heavy.item() == pytest.approx(expected + math.log(3), abs=1e-3)
    assert plain.item() == pytest.approx((right + wrong) / 2 + math.log(3), abs=1e-3)


def test_scores_by_hand() -> None:
    labels = torch.tensor([[1, 0], [1, IGNORED], [0, 0]])
    tokens = torch.tensor([[[0.0, 1], [0, 1]], [[1, 0], [0, 1]], [[0, 1], [0, 1]]])
    tags = torch.tensor([Tag.CONTINUE, Tag.FINISH, Tag.TERMINATE])
    judged = torch.eye(3)[torch.tensor([0, 0, 1])]
    arrays = [each.numpy() for each in (tokens, judged, labels, tags)]
    found = labeler_scores(*arrays)
    assert found["tag_accuracy"] == (pytest.approx(2 / 3), pytest.approx(1 / 3), 3)
    assert found["token_f1"].value == pytest.approx(0.5)  # marks 2, useful 2, both 1
    tokens, _, labels, _ = arrays
    assert filter_scores(tokens, labels)["exact_query"].value == 0.0
    right = filter_scores(1 - tokens[1:2], labels[1:2])
    assert {name: score.value for name, score in right.items()} == {
        "exact_query": 1.0, "token_f1": 1.0,
    }  # fmt: skip


def test_a_filter_has_no_tags_and_a_mean_counts_no_padding() -> None:
    batch = collate([labeler_input(minilm_tokenizer(), labeler_row(), LABELER)])
    read = {name: batch[name] for name in INPUTS}
    assert TAGS not in LabelNetwork(BertModel(TINY), FilterSettings())(**read)
    padded = {name: torch.nn.functional.pad(value, (0, 3)) for name, value in read.items()}
    model = network(pool="mean", tags=2)
    assert model(**read)[TAGS].shape == (1, 2)
    assert torch.allclose(model(**read)[TAGS], model(**padded)[TAGS], atol=1e-5)
