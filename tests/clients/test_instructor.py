"""instructor: an object from a model, by a tool or by a schema."""

import openai
import pytest
from clients_kit import Scripted, calls
from pydantic import BaseModel

instructor = pytest.importorskip("instructor")


class City(BaseModel):
    name: str
    people: int


@pytest.mark.parametrize("mode", ["TOOLS", "JSON", "JSON_SCHEMA"])
def test_modes(server: Scripted, mode: str) -> None:
    server.say(calls("City", name="Ulm", people=126000) if mode == "TOOLS" else '{"name": "Ulm", "people": 126000}')
    plain = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    own = instructor.from_openai(plain, mode=instructor.Mode[mode])
    turn = [{"role": "user", "content": "hello"}]
    found = own.chat.completions.create(model="tiny", messages=turn, response_model=City, max_retries=0)
    assert found.model_dump() == {"name": "Ulm", "people": 126000}
