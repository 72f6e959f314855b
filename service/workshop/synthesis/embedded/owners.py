"""Questions that owners of documents ask: names that nobody knows, "our", hours, prices, codes.

Each must be looked up, however ordinary its words are. The last of every tuple never train.
"""

from __future__ import annotations

import random
from typing import Final

from service.workshop.facts.questions import join_questions, wordings
from service.workshop.facts.substitution import syllable_name

KINDS: Final = (
    "Brewery", "Bakery", "Clinic", "Library", "Hotel", "Garage", "Museum", "Academy", "Café",
    "Pharmacy", "Hardware", "Logistics", "Dental Practice", "Choir", "Rowing Club", "Vineyard",
    "Veterinary Centre", "Print Shop", "Community Hall", "Insurance", "Robotics", "Housing Trust",
)  # fmt: skip
PLACES: Final = (
    "the café", "the office", "the front desk", "the swimming pool", "the gym", "the canteen",
    "the workshop", "the warehouse", "the reading room", "the car park", "the shop", "the lab",
    "our branch", "our kitchen", "the help desk", "the reception", "the clubhouse",
)  # fmt: skip
THINGS: Final = (
    "refund", "parental leave", "expense report", "password reset", "parking permit",
    "equipment loan", "library card", "travel booking", "invoice", "warranty claim", "night shift",
    "membership", "deposit", "room booking", "delivery", "allergy list", "fire drill",
    "access badge", "backup", "data export", "release", "home office day", "sick note",
)  # fmt: skip
PARTS: Final = (
    "pump", "valve", "printer", "router", "battery", "sensor", "gearbox", "compressor", "heater",
    "coffee machine", "dishwasher", "thermostat", "charger", "controller", "drill", "scanner",
)  # fmt: skip
ROLES: Final = (
    "the manager", "the treasurer", "the night nurse", "the head chef", "the trainer",
    "the data protection officer", "the caretaker", "the team lead", "the choir leader",
    "the site engineer", "the owner", "the accountant", "the contact person", "the founder",
)  # fmt: skip
SINGLE: Final = (
    "When does {place} open on {day}?", "What are the opening hours of {place}?",
    "what time does {place} close", "Is {place} open on {day}?", "How late is {place} open?",
    "What does error {code} mean?", "what is error code {code} on the {model} {part}",
    "How do I fix {code} on the {part}?", "Why does the {part} show {code}?",
    "How do I reset the {model}?", "Which fuse does the {model} {part} need?",
    "How often must the {part} be serviced?", "What is the warranty period of the {model}?",
    "how long is the guarantee on the {part}", "What is the maximum load of the {model}?",
    "What is our {thing} policy?", "How do I ask for a {thing}?", "Who approves a {thing}?",
    "How long does a {thing} take?", "what do I need for a {thing}",
    "Where do I hand in a {thing}?",
    "How much does a {thing} cost at {org}?", "What is the deadline for a {thing}?",
    "Can I cancel a {thing}?", "Do we offer a {thing} to part-time staff?",
    "Who is {role} of {org}?", "who is {role} at {org}", "What is the phone number of {role}?",
    "How can I reach {role}?", "When was {org} founded?", "Where is {org}?", "Who owns {org}?",
    "What is the flagship product of {org}?", "What does {org} sell?", "Where is {org} based?",
    "How many people work at {org}?", "What is the address of {org}?", "Who founded {org}?",
    "What is the best-known beer of {org}?", "What is the menu of {org} on {day}?",
    "How strong is the {beer}?", "What is in the {beer}?", "How much is the {beer}?",
    "What is the wifi password in {place}?", "Where are the keys of {place}?",
    "Who cleans {place}?", "Who has the keys to {place}?", "Are dogs allowed in {place}?",
    "Is there a lift to {place}?", "Where can I park near {place}?", "What is room {number} for?",
    "When is {person} in the office?", "What is {person}'s role?", "Who is {person}?",
    "What did {person} decide on {day}?", "Which project does {person} lead?",
    "Who replaces {person} on {day}?", "What is {person}'s extension?",
    "When is the next {thing}?", "What happened in the meeting on {day}?",
    "Which version of {product} supports {feature}?", "How do I install {product}?",
    "Does {product} support {feature}?", "How do I turn on {feature} in {product}?",
    "What is the default port of {product}?", "Where does {product} write its logs?",
    "How much memory does {product} need?", "What changed in {product} {version}?",
    "What is the rate limit of the {product} API?", "Which licence does {product} have?",
    "how many users does the {product} starter plan include", "What does {product} cost a month?",
    "What is the notice period in the contract with {org}?", "What does clause {number} say?",
    "What is the total of invoice {number}?", "When is invoice {number} due?",
    "Which bus stops at {org}?", "How many seats does {place} have?",
    "What is the dose of {drug} for children?", "What are the side effects of {drug}?",
    "How is {drug} stored?", "What is our return window?", "How many days off do we get?",
    "What is our VAT number?", "Who is our supplier of {part}s?", "What is our emergency number?",
    "How do we label allergens?", "What is our dress code?", "Where is our first-aid kit?",
    "What time is check-in?", "Is breakfast included?", "Do you deliver to {town}?",
    "What is the name of the cat in {place}?", "Where did {person} grow up?",
    "what is the serial number of the {part}", "Which colour is the {part} cable?",
    "What temperature does the {part} run at?", "How many steps does the {thing} form have?",
    # Kept for tests:
    "Until when is {place} open on {day}?", "What should I do when the {part} reports {code}?",
)  # fmt: skip
COMPLEX: Final = (
    "Who is the manager of the person who approves a {thing}?",
    "Where was the founder of {org} born?",
    "When was the company that makes the {model} founded?",
    "Which is older, {org} or {org2}?", "Who earns more, {person} or {person2}?",
    "Does {place} open earlier on {day} than {place2}?", "Which costs more, {beer} or {beer2}?",
    "What is the phone number of the person who runs {place}?",
    "In which town is the supplier of our {part} based?",
    "Who leads the project that {person} works on?", "Is {org} bigger than {org2}?",
    # Kept for tests:
    "Which was founded first, {org} or {org2}?", "Who supervises the head of {org}?",
)  # fmt: skip
DAYS: Final = (
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "public holidays",
    "weekends", "Christmas Eve", "3 March", "12 June",
)  # fmt: skip
FEATURES: Final = (
    "dark mode", "single sign-on", "CSV export", "offline sync", "two-factor login", "webhooks",
    "IPv6", "backups", "multiple currencies", "tagging", "search filters", "rate limits",
)  # fmt: skip
BEERS: Final = ("Pale Ale", "Stout", "Porter", "Tart", "Roast", "Sourdough", "Blend", "Burger")


class Owners:
    """Draws questions on documents of somebody's own; `unseen` takes the wordings kept back."""

    def __init__(self, rng: random.Random, *, unseen: bool = False) -> None:
        self.rng, self.unseen = rng, unseen

    def single(self) -> str:
        return self._filled(self.rng.choice(wordings(SINGLE, unseen=self.unseen)))

    def complex(self) -> str:
        return self._filled(self.rng.choice(wordings(COMPLEX, unseen=self.unseen)))

    def parts(self) -> list[str]:
        """Two questions that are typed as one."""
        return [self.single(), self.single()]

    def compound(self) -> str:
        return join_questions(self.parts(), self.rng)

    def _filled(self, wording: str) -> str:
        return wording.format_map(
            {
                "place": self.rng.choice(PLACES), "place2": self.rng.choice(PLACES),
                "thing": self.rng.choice(THINGS), "part": self.rng.choice(PARTS),
                "role": self.rng.choice(ROLES), "day": self.rng.choice(DAYS),
                "feature": self.rng.choice(FEATURES), "org": self._firm(), "org2": self._firm(),
                "person": self._person(), "person2": self._person(), "beer": self._beer(),
                "beer2": self._beer(), "product": self._name(), "drug": self._name(),
                "town": self._name(), "model": self._model(), "code": self._code(),
                "number": str(self.rng.randint(2, 9999)),
                "version": f"{self.rng.randint(0, 9)}.{self.rng.randint(0, 20)}",
            }
        )  # fmt: skip

    def _name(self) -> str:
        return syllable_name(self.rng)

    def _firm(self) -> str:
        tail = f" {self.rng.choice(KINDS)}" if self.rng.random() < 0.85 else " & Sons"
        return self._name() + tail

    def _person(self) -> str:
        return f"{self._name()} {self._name()}" if self.rng.random() < 0.7 else self._name()

    def _beer(self) -> str:
        return f"{self._name()} {self.rng.choice(BEERS)}"

    def _model(self) -> str:
        letters = "".join(self.rng.choices("ABCDEHKLMPRSTVXZ", k=self.rng.randint(1, 3)))
        return f"{letters}{self.rng.choice(('', '-'))}{self.rng.randint(2, 9900)}"

    def _code(self) -> str:
        lead = self.rng.choice(("E", "E-", "F", "ERR", "0x", "", "H", "P0"))
        return f"{lead}{self.rng.randint(1, 999)}"
