"""The language of the first documents of a collection."""

from __future__ import annotations

import json

import pytest

from service.cli.terminal import SAMPLE_QUESTIONS
from service.retrieval.stores.analysis import analysis_for

TEXTS = {
    "french": "Le musée est ouvert tous les jours sauf le mardi, et les visiteurs qui viennent "
    "avec leurs enfants ont droit à une réduction. Il a été fondé par la ville dans une gare.",
    "italian": "Il museo è aperto tutti i giorni. È stato fondato dalla città in una stazione "
    "del centro, e gli ospiti che vengono con i bambini pagano di più nel fine settimana.",
    "portuguese": "O museu foi fundado pela cidade em uma estação do centro, e os visitantes que "
    "vêm com crianças não pagam mais do que a metade da entrada.",
    "spanish": "El museo fue fundado por la ciudad en una estación del centro, y los visitantes "
    "con niños no pagan más que la mitad, pero el jardín está cerrado para ellos.",
    "dutch": "Het museum is elke dag open. Het werd door de stad gesticht in een oud station van "
    "het centrum, en bezoekers die met kinderen komen betalen niet meer dan de helft.",
    "german": "Das Museum ist jeden Tag geöffnet und wurde von der Stadt in einem alten Bahnhof "
    "für Kinder gegründet, die nicht mehr als die Hälfte zahlen.",
    "swedish": "Museet är öppet alla dagar. Det grundades av staden i en gammal station och är "
    "till för barn som inte betalar; från våren finns också en park.",
    "finnish": "Museo on avoinna joka päivä, mutta se oli alun perin asema, ja hän kertoi että "
    "puisto avattiin vuonna 1990 ja että se on myös auki.",
    "hungarian": "A múzeum minden nap nyitva van, és a gyerekek nem fizetnek. Az épület egy régi "
    "állomás volt, amely után a város hogy megmentse, egy parkot is nyitott.",
    "turkish": "Müze her gün açık ve bu bina şehir tarafından bir istasyon olarak yapıldı; "
    "çocuklar için park daha sonra açıldı.",
    "romanian": "Muzeul este deschis în fiecare zi și a fost fondat de oraș în gara din centru, "
    "iar vizitatorii cu copii nu plătesc mai mult.",
    "greek": "Το μουσείο είναι ανοιχτό και ιδρύθηκε από την πόλη στο κέντρο για τα παιδιά που "
    "δεν πληρώνουν με την κάρτα του δήμου.",
    "russian": "Музей открыт каждый день, и это здание было построено как вокзал; для детей, "
    "которые после этого пришли, был открыт также парк.",
    "arabic": "المتحف مفتوح كل يوم في وسط المدينة التي كانت محطة قديمة، كما أن هذا المبنى بعد "
    "ذلك فتح على الحديقة مع الأطفال",
}  # fmt: skip
OTHERS = {
    "English": "The museum was founded by the city in an old station, which is open to children.",
    "Bulgarian": "Музеят е отворен всеки ден, а децата не плащат за вход. Основан е от града в "
    "стара гара, която се намира в центъра на града и е била построена като пазар.",
    "Ukrainian": "Музей відкритий щодня, і діти не платять за вхід. Він був заснований містом у "
    "старому вокзалі, що стоїть у центрі, та є парк, який відкрили за рік.",
    "Catalan": "El museu és obert cada dia. Va ser fundat per la ciutat en una antiga estació del "
    "centre, i els visitants que venen amb nens paguen la meitat.",
    "Persian": "موزه هر روز باز است و کودکان برای ورود پول نمی دهند و در مرکز شهر است.",
    "Chinese": "博物馆每天开放。它是由城市在市中心的一个旧车站创建的。",
    "Thai": "พิพิธภัณฑ์เปิดทุกวัน ก่อตั้งโดยเมืองในสถานีเก่า",
    "code": "import os, sys\ndef main(args): return os.path.join(*args)",
    "nothing": "",
    "emoji": "\N{VOLCANO} \N{VOLCANO}",
}


@pytest.mark.parametrize("language", TEXTS)
def test_a_clear_language_is_told(language: str) -> None:
    assert analysis_for([TEXTS[language]]) == language


@pytest.mark.parametrize("other", OTHERS)
def test_other_languages_and_no_language_are_english(other: str) -> None:
    assert analysis_for([OTHERS[other]]) == "english"


def test_mixed_texts_are_english() -> None:
    assert analysis_for([TEXTS["german"], *[OTHERS["English"]] * 3]) == "english"
    assert analysis_for(TEXTS.values()) == "english"
    assert analysis_for([]) == "english"


def test_a_few_foreign_texts_do_not_hide_the_language_of_most() -> None:
    assert analysis_for([*[TEXTS["german"]] * 9, OTHERS["English"]]) == "german"


def test_the_sample_is_english() -> None:
    corpus = SAMPLE_QUESTIONS.with_name("corpus.jsonl")
    rows = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    assert [analysis_for([row["text"]]) for row in rows] == ["english"] * len(rows)
