"""The guard: what it holds back, over which texts, and what it lets go."""

import pytest
from wire_reader import PLACEHOLDER, Sender, Tap, Tokens

from edgedraft.errors import InvalidInput, LeakError
from edgedraft.privacy.guard import Guard, GuardLimits, placeholder_token

CARD = "4929 1234 5678 9012"
NOTE = "Please cancel the gym membership that I took out in spring because I am moving to Rotterdam."


def make(*secrets: str, private: str = "", public: str = "", **limits: int) -> tuple[Guard, Tokens]:
    tokens = Tokens()
    return Guard(secrets, [private], public, tokens.bytes, GuardLimits(**limits)), tokens


def wire(guard: Guard, tokens: Tokens, text: str, sender: Sender | None = None, lengths: tuple[int, ...] = ()) -> str:
    """What the verifier sees of a text."""
    sender = sender or Sender(guard, tokens, Tap())
    start = len(sender.sent)
    for token in tokens.split(text, lengths):
        sender.send(token)  # one by one, so that what is held back does not depend on how much was drafted ahead
    return b"".join(sender.sent[start:]).decode(errors="replace")


def held(guard: Guard, tokens: Tokens, text: str) -> bool:
    return PLACEHOLDER.decode() in wire(guard, tokens, text)


# ---------------------------------------------------------------------------------------------------- what is found


@pytest.mark.parametrize(
    "said",
    [
        "492912",
        "4 9 2 9 1 2",
        "4929-1234-5678-9012",
        "x1234567y",
        "four nine two nine one two",
        "f o u r n i n e t w o n i n e o n e t w o",
        "fourNineTwoNineOneTwo",
        "forty-nine twenty-nine twelve",
        "4 and nine and 2 and then 9, after it a 1, at last two",
        "vier negen twee negen een twee",
        "quarante-neuf vingt-neuf douze",
        "４９２９１２",
        "4\u200b9\u200b2\u200b9\u200b1\u200b2",
        "**4**9**2**9**1**2",
    ],
)
def test_six_characters_of_a_secret_are_held_back(said: str):
    guard, tokens = make(CARD)
    assert held(guard, tokens, said)


@pytest.mark.parametrize("said", ["4 and 7 and then 1, at last 1", "4x7x1x1", "four or seven or one or one"])
def test_a_short_number_may_not_leave_between_other_words(said: str):
    guard, tokens = make("4711")
    assert held(guard, tokens, said)
    assert not held(guard, tokens, "4 and 7 and then 2")


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        *(("Ana Ríos", said) for said in ("Ana", "ana", "ANA", "Ríos", "rios")),
        ("Jan van den Berg", "Berg"),
        ("Lee-Ann O'Hara", "Lee-Ann"),
        ("van Dijk", "Dijk"),
        ("de Vries", "VRIES"),
        ("Max Roth (Berlin)", "Max then Roth"),
        ("“Max Roth”", "Max"),
        ("Max_Roth", "Max"),
        ("Dr. Max Emil Ernst Paul von und zu Roth", "Emil"),
        ("عمر علي", "السيد عمر ثم"),
        ("राम लाल", "राम और लाल"),
        ("김 철수", "철수"),
    ],
)
def test_no_word_of_a_name_leaves(secret: str, said: str):
    guard, tokens = make(secret)
    assert held(guard, tokens, f"It was {said} , of course.")


def test_a_name_that_is_sure_needs_not_be_written_like_one():
    tokens = Tokens()
    guard = Guard(["max roth", "Roth 2"], [], "", tokens.bytes, names=["max roth"])
    assert held(guard, tokens, "It was max, of course.")
    assert held(guard, tokens, "It was roth, of course.")
    later = Guard(["max roth"], [], "", tokens.bytes)
    assert not held(later, tokens, "It was max, of course.")
    later.extend(["max roth"], names=["max roth"])
    assert held(later, tokens, "It was max, of course.")


def test_a_title_is_no_name():
    guard, tokens = make("The Merger With Acme", "Notes for Our Friends")
    assert not held(guard, tokens, "Yes, the plan is that the team works with you.")
    assert held(guard, tokens, "the merger")


def test_words_that_tell_nothing_of_a_name_or_a_phrase_leave():
    guard, tokens = make("Jan van den Berg", "The one with the cat", "Flat 4 Elm Road")
    assert not held(guard, tokens, "A cat of den and van, with an elm and one flat.")


def test_all_of_a_secret_from_the_sixth_character_on_stays():
    guard, tokens = make(CARD)
    assert (
        wire(guard, tokens, f"It is {CARD}, yes").replace(PLACEHOLDER.decode(), "_") == "It is 4929 1___ ____ ____, yes"
    )


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("Bob", "ask bob."),
        ("Bob", "userBob"),
        ("Bob", "BobAccount"),
        ("Bob", "b-o-b"),
        ("4711", "PIN4711"),
        ("4711", "forty-seven eleven"),
        ("twenty-one", "room 21"),
        ("Jo Li Smith", "for Jo Li only"),
        ("王小明", "我是王小明。"),
        ("Müller Straße", "MULLER"),
        ("1984-03-12", "on the 12th of March"),
        ("12 March 1984", "12/3/84"),
        ("P@ss-w0rd", "p@ssw0rd"),
        ("Łódź-Ørsted", "lodz orsted"),
        ("ACME 7", "acme seven"),
    ],
)
def test_short_and_odd_secrets(secret: str, said: str):
    guard, tokens = make(secret)
    assert held(guard, tokens, said)


@pytest.mark.parametrize(
    ("secret", "said"),
    [("Bob", "Bobsleigh"), ("Bob", "kebob"), ("4711", "in 1471"), ("Jo Li Smith", "Jolly"), (CARD, "In 1929 and 2012")],
)
def test_what_only_looks_alike_may_leave(secret: str, said: str):
    guard, tokens = make(secret)
    assert not held(guard, tokens, said)


def test_five_private_words_in_a_row_are_held_back_and_four_are_not():
    guard, tokens = make(private=NOTE)
    assert not held(guard, tokens, "I cancel the gym membership because you are moving to Rotterdam")
    assert (
        wire(guard, tokens, "please cancel, the GYM membership!")
        == f"please cancel, the GYM membe{PLACEHOLDER.decode()}!"
    )


def test_private_words_letter_by_letter():
    guard, tokens = make(private=NOTE)
    assert held(guard, tokens, " ".join("Please cancel the gym membership"))


def test_a_private_number_may_not_come_back_in_words():
    guard, tokens = make(private="We pay 21 euros a week for it")
    assert held(guard, tokens, "You pay twenty-one euros a week")
    guard, tokens = make(private="We pay twenty-one euros a week for it")
    assert held(guard, tokens, "You pay 21 euros a week")


def test_scripts_without_spaces_count_two_characters_as_a_word():
    guard, tokens = make(private="我的银行卡号码是保密的请不要告诉任何人")
    assert not held(guard, tokens, "银行卡号码")
    assert held(guard, tokens, "他说银行卡号码是保密的请")


def test_what_stands_in_the_public_view_is_free():
    guard, tokens = make("Rotterdam", private=NOTE, public="Answer about the gym membership in Rotterdam.")
    assert not held(guard, tokens, "the gym membership in rotterdam")
    assert held(guard, tokens, "that I took out in spring")


def test_a_short_secret_is_free_only_where_it_stands_as_a_word():
    public = "Use the channel of 1947."
    guard, tokens = make("Ann", "47", public=public)
    assert held(guard, tokens, "to Ann")
    assert held(guard, tokens, "47 of them")
    guard, tokens = make("Ann", public="For Ann.")
    assert not held(guard, tokens, "to Ann")


def test_one_token_may_hold_several_words():
    guard, tokens = make(CARD)
    trail, is_held = guard.step(guard.root(), tokens.id(b"the card 4929 1234 and more"))
    assert is_held
    assert guard.step(trail, tokens.id(b" words"))[1] is False


def test_tokens_that_are_parts_of_characters():
    guard, tokens = make("王小明")
    text = wire(guard, tokens, "是王小明", lengths=(1,))
    assert "明" not in text
    assert "王小" in text


# ---------------------------------------------------------------------------------------------------- over what


def test_a_rollback_joins_no_pieces():
    guard, tokens = make(CARD)
    sender = Sender(guard, tokens, Tap())
    wire(guard, tokens, "4929 and so", sender)
    sender.roll_back(len(" and so") - 2)
    assert PLACEHOLDER.decode() in wire(guard, tokens, "1234", sender)


def test_what_was_sent_and_taken_back_counts():
    guard, tokens = make("abcdefghijkl")
    sender = Sender(guard, tokens, Tap())
    wire(guard, tokens, "abcd", sender, (1,))
    sender.roll_back(4)
    assert wire(guard, tokens, "efgh", sender, (1,)).startswith(f"e{PLACEHOLDER.decode()}")


def test_sessions_join_no_pieces():
    guard, tokens = make("abcdefghijkl")
    assert wire(guard, tokens, "abcd") == "abcd"
    assert wire(guard, tokens, "efgh", lengths=(1,)).startswith(f"e{PLACEHOLDER.decode()}")


def test_the_order_of_sending_in_a_session_is_watched_beside_another_session():
    guard, tokens = make("abcdef")
    sender = Sender(guard, tokens, Tap())
    wire(guard, tokens, "abc", sender, (1,))
    sender.roll_back(3)
    wire(guard, tokens, "something else")
    assert wire(guard, tokens, "def", sender, (1,)) == f"de{PLACEHOLDER.decode()}"


def test_a_word_starts_where_a_path_does():
    guard, tokens = make("Bob")
    sender = Sender(guard, tokens, Tap())
    for text in ("xx", "bo"):
        wire(guard, tokens, text, sender)
        sender.roll_back(1)
    assert wire(guard, tokens, "b", sender) == PLACEHOLDER.decode()


def test_placeholders_join_no_pieces():
    """What is held back is missing on the wire, and what stands around it may spell a secret there."""
    guard, tokens = make("abcdef", "Bob")
    sender = Sender(guard, tokens, Tap())
    assert wire(guard, tokens, "abc", sender, (1,)) == "abc"
    assert wire(guard, tokens, " bob", sender, (4,)) == PLACEHOLDER.decode()
    wire(guard, tokens, "something", sender, (9,))
    sender.roll_back(1)  # so that only the path joins them, not the order of sending
    assert wire(guard, tokens, "def", sender, (1,)) == f"de{PLACEHOLDER.decode()}"


def test_the_rest_of_a_torn_character_stays():
    guard, tokens = make("Bob")
    sender = Sender(guard, tokens, Tap())
    first, second = "é".encode()[:1], "é".encode()[1:]
    ids = [tokens.id(data) for data in (b"caf", first, b" bob", second)]
    assert [sender.send(token)[0] for token in ids] == [False, False, True, True]
    assert not sender.send(tokens.id(first))[0]
    assert not sender.send(tokens.id(second))[0]


def test_what_the_verifier_said_joins_with_what_stands_around_a_placeholder():
    guard, tokens = make("xyz", "bob", "xyzuvw")
    session, trail = guard.session(), guard.root()
    trail, is_held = guard.step(trail, tokens.id(b" xyz"))
    trail.known = True
    assert is_held
    trail, is_held = guard.step(trail, tokens.id(b" bob"))
    assert is_held
    trail, is_held = guard.step(trail, tokens.id(b" uvw"))
    assert not is_held
    assert session.leave(tokens.id(b" uvw"), trail)


def test_a_long_row_of_spelled_digits():
    guard, tokens = make("888888")
    for count in range(15, 30):
        assert held(guard, tokens, "one two " * count + "three eight eight eight eight eight eight three")


def test_a_secret_that_the_verifier_has_begun_is_not_finished():
    guard, tokens = make(CARD)
    trail = guard.root()
    for token in tokens.split("4929 1"):
        trail, _ = guard.step(trail, token)
        trail.known = True
    assert guard.step(trail, tokens.id(b"2"))[1]


def test_what_the_verifier_put_there_itself_stands_on_the_wire():
    guard, tokens = make("abcdef")
    session = guard.session()
    trail, is_held = guard.step(guard.root(), tokens.id(b"abcdef"))
    trail.known = True
    assert is_held
    trail, _ = guard.step(trail, tokens.id(b" "))
    assert not session.leave(tokens.id(b" "), trail)
    assert trail.held is False


def test_a_draft_may_be_long_made_when_it_leaves():
    """What `leave` holds back is missing for what was drafted behind it."""
    guard, tokens = make("abcdefghijkl")
    assert wire(guard, tokens, "xx abcd") == "xx abcd"  # four of its characters; one more may leave
    session = guard.session()
    trails = [guard.root()]
    ids = tokens.split("ghijk", (1,))
    for token in ids:
        trails.append(guard.step(trails[-1], token)[0])
    assert not any(trail.held for trail in trails)
    assert [session.leave(token, trail) for token, trail in zip(ids, trails[1:], strict=True)] == [False] * 3 + [
        True
    ] * 2
    assert session.leave(ids[3], trails[4])  # once held back, always


def test_without_trails_the_order_of_sending_is_watched():
    guard, tokens = make("abcdefghijkl")
    first, second = guard.session(), guard.session()
    sessions = [first, second, first, second, first, second]
    held_back = [session.leave(token) for session, token in zip(sessions, tokens.split("abcdef", (1,)), strict=True)]
    assert held_back == [False] * 5 + [True]


def test_pieces_leave_within_a_budget_over_all_sessions():
    guard, tokens = make(CARD)
    assert wire(guard, tokens, "Group one: 4929. ") == "Group one: 4929. "
    assert wire(guard, tokens, "Group two: 1234. ") == f"Group two: 12{2 * PLACEHOLDER.decode()}. "
    assert wire(guard, tokens, "Once more: 4929") == "Once more: 4929"


def test_a_piece_beyond_the_budget_is_known_before_it_is_sent():
    guard, tokens = make(CARD)
    assert wire(guard, tokens, "Group one: 4929. ") == "Group one: 4929. "
    trail = guard.root()
    for token in tokens.split("Or 12"):
        trail, _ = guard.step(trail, token)
        assert guard.allows(trail)
    trail, held_back = guard.step(trail, tokens.id(b"34"))
    assert not held_back  # it is too short to be forbidden, but more than may be told
    assert not guard.allows(trail)


def test_ordinary_parts_of_words_do_not_use_up_a_budget():
    guard, tokens = make("Thomas Anderson")
    assert not held(guard, tokens, "A person wonders: who stands under the erased border?")


# ---------------------------------------------------------------------------------------------------- the rest


def test_texts_are_added_as_a_conversation_goes_on():
    guard, tokens = make()
    assert not held(guard, tokens, "Rotterdam")
    guard.extend(["Rotterdam"], [NOTE])
    assert held(guard, tokens, "Rotterdam")
    guard.extend(public_text="A letter about Rotterdam")
    assert not held(guard, tokens, "Rotterdam")


def test_a_text_goes_on_under_patterns_that_reach_farther():
    guard, tokens = make("abcdef 12")
    sender = Sender(guard, tokens, Tap())
    assert not any(sender.send(*tokens.split("There are 3 of them, namely ")))
    long_words = "incomprehensibilities characteristically notwithstanding constitutionally disproportionately"
    guard.extend(private_texts=[long_words])
    assert any(sender.send(*tokens.split(long_words)))


def test_texts_that_leave_by_other_ways():
    guard, _ = make(CARD, "ann", private=NOTE)
    guard.check_text("smollm2-135m", "model")
    guard.check_text("anna", "stop[0]")
    for text in ("ann", "ann-", " ann"):
        guard.check_text(text, "draft", cut=True)
    for text in ("my card 49 29 12 34", "Ann", "please cancel the gym membership"):
        with pytest.raises(LeakError, match=r"^stop\[0\]: ") as error:
            guard.check_text(text, "stop[0]")
        assert text not in str(error.value)
    with pytest.raises(LeakError):
        guard.check_text("9291234", "draft", cut=True)
    with pytest.raises(LeakError):
        guard.check_text("to ann and", "draft", cut=True)


def test_a_secret_that_cannot_be_found_is_refused():
    with pytest.raises(InvalidInput, match=r"secrets\[1\]") as error:
        make("fine", "!!?*")
    assert "!!?*" not in str(error.value)
    make("fine", "  ")


@pytest.mark.parametrize(
    "limits", [{"secret_words": 0}, {"secret_chars": 2}, {"private_words": 1}, {"secret_chars": 6.0}]
)
def test_limits_have_bounds(limits: dict[str, int]):
    with pytest.raises(InvalidInput, match=f"limits.{next(iter(limits))}"):
        GuardLimits(**limits)


def test_limits_are_settings():
    guard, tokens = make(CARD, secret_chars=10, secret_words=5)
    assert not held(guard, tokens, "4929 1234 5")
    assert held(guard, tokens, "29 1234 5678")
    guard, tokens = make(private=NOTE, private_words=3)
    assert held(guard, tokens, "the gym membership")
    guard, tokens = make("Jo Li Smith", secret_words=1)
    assert held(guard, tokens, "Jo")


def test_nothing_private_stands_in_a_repr():
    guard, tokens = make(CARD, "Rotterdam", private=NOTE)
    trail, _ = guard.step(guard.root(), tokens.id(b"Rotter"))
    session = guard.session()
    session.leave(tokens.id(b"Rotter"), trail)
    shown = "".join(map(repr, (guard, trail, session, guard._patterns, trail._reading, trail._reading.spelled)))
    assert not any(piece in shown.casefold() for piece in ("rotter", "4929", "gym"))


def test_what_is_kept_of_a_text_does_not_grow():
    guard, tokens = make(CARD, private=NOTE)
    trail, session = guard.root(), guard.session()
    sizes = set()
    for count, token in enumerate(tokens.split("And then 12 more things happened, none of them new. " * 40)):
        trail, _ = guard.step(trail, token)
        session.leave(token, trail)
        if count > 200:
            assert trail._reading.spelled is not None
            sizes.add((len(trail._reading.text), len(trail._reading.bounds), len(trail._reading.spelled.text)))
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("vocabulary", "chosen"),
    [({" ___": 7, "…": 8}, 7), ({"…": 8, ".": 9}, 8), ({" ___": 5, ".": 9}, 9)],
)
def test_a_placeholder_is_one_token_without_letters(vocabulary: dict[str, int], chosen: int):
    said = {ids: text for text, ids in vocabulary.items()} | {5: " blank"}
    assert (
        placeholder_token(
            lambda text: [vocabulary.get(text, 1)] * (1 if text in vocabulary else 2), lambda t: said[t].encode()
        )
        == chosen
    )


def test_a_vocabulary_without_a_placeholder_is_refused():
    with pytest.raises(InvalidInput, match="tokenizer"):
        placeholder_token(lambda text: [1, 2], lambda token: b"x")
