"""The table of what tokens do to a JSON text, against a reader that goes byte by byte."""

import random

from grammar_kit import TABLE

from octavo.grammar.growth import DEEPER, FLAT, MEMBERS, MOST, PLACES, QUIET, START, STRINGS, costs_of_json, move_table


class Reader:
    def __init__(self):
        self.in_string = self.escaped = False
        self.last = self.depth = 0

    @property
    def place(self):
        return 2 * (2 if self.escaped else self.in_string) + (self.last in b"{," and self.last > 0)

    def read(self, text):
        strings = members = 0
        for byte in text:
            if self.escaped:
                self.escaped = False
            elif byte == ord("\\"):
                self.escaped = self.in_string
            elif byte == ord('"'):
                self.in_string = not self.in_string
                strings += self.in_string
            elif not self.in_string and byte not in b" \n\r\t":
                self.last = byte
                self.depth += (byte in b"{[") - (byte in b"}]")
                members += byte in b"{[,"
        return strings, members


def test_moves_are_those_of_a_reader():
    dice = random.Random(1)
    signs = [bytes([sign]) for sign in b'"\\,[]{}: \na0']
    tokens = [b"", *signs, *(b"".join(dice.choices(signs, k=dice.randint(2, 9))) for _ in range(300)), *TABLE.tokens]
    moves = move_table(tokens)
    assert len(moves) == PLACES
    for _ in range(300):
        reader, place, depth = Reader(), START, 0
        for _ in range(12):
            token = dice.randrange(len(tokens))
            strings, members = reader.read(tokens[token])
            move = moves[place][token]
            place = move & QUIET
            assert place == reader.place
            if move > QUIET:
                depth += (move >> DEEPER) - FLAT
                assert (move >> STRINGS & MOST, move >> MEMBERS & MOST) == (strings, members)
            else:
                assert strings == members == 0
            assert depth == reader.depth


def test_a_vocabulary_without_texts_has_moves():
    assert [list(row) for row in move_table([b"", b""])] == [[place, place] for place in range(PLACES)]


def test_more_is_counted_than_there_is_room_for_as_the_most():
    move = move_table([b"[" * 5000])[START][0]
    assert move >> MEMBERS & MOST == MOST
    assert (move >> DEEPER) - FLAT == FLAT - 1


def test_a_token_within_a_name_costs_what_the_member_may():
    costs = costs_of_json(4, 20, 6, 30, 50)
    assert costs.turns == (5, 5, 5, 21, 5, 21)
    assert (costs.string, costs.member, costs.bracket, costs.rest) == (6, 30, 50, 10)
