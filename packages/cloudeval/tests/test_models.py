import asyncio
import http.server
import json
import threading

import pytest

from cloudeval.errors import EndpointError, UsageError
from cloudeval.models import Client, Endpoint, read_files


class Server:
    """An endpoint that gives the prepared answers in turn, the last one for ever."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                outer.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                status, body = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def __enter__(self):
        self.thread = threading.Thread(target=self.http.serve_forever)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


def good(text):
    return 200, {"choices": [{"message": {"content": text}}], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}


def ask(endpoint, prompt="p", samples=(0,)):
    async def go():
        async with Client(endpoint) as client:
            return [await client.ask(prompt, sample) for sample in samples]

    return asyncio.run(go())


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CLOUDEVAL_CACHE", str(tmp_path / "cache"))


def test_odd_answers_are_asked_again():
    odd = [(200, {"choices": None}), (200, {"choices": [{"message": {"content": None}}]}), (500, {}), good("kind: Pod")]
    with Server(*odd) as server:
        answer = ask(Endpoint(server.url, "m"))[0]
    assert (answer.text, answer.prompt_tokens, len(server.asked)) == ("kind: Pod", 10, 4)


def test_an_endpoint_that_stays_empty_gives_an_empty_answer_and_the_run_goes_on():
    with Server((200, {"choices": None})) as server:
        answer = ask(Endpoint(server.url, "m", retries=1))[0]
    assert answer.text == ""
    assert "empty" in answer.note


def test_samples_stay_distinct_in_the_cache_and_cost_once():
    with Server(good("one"), good("two")) as server:
        endpoint = Endpoint(server.url, "m", prices=(1.0, 2.0))
        first = ask(endpoint, samples=(0, 1))
        again = ask(endpoint, samples=(0, 1))
    assert [a.text for a in first] == [a.text for a in again] == ["one", "two"]
    assert len(server.asked) == 2
    assert endpoint.cost(first[0]) == pytest.approx(20e-6)
    assert endpoint.cost(again[0]) == 0


def test_wrong_settings_are_one_clear_error():
    with Server((401, {"error": "no"})) as server, pytest.raises(EndpointError, match="OPENAI_API_KEY"):
        ask(Endpoint(server.url, "m"))
    with pytest.raises(EndpointError, match="cannot be reached"):
        ask(Endpoint("http://127.0.0.1:9/v1", "m", retries=0))


def test_files_of_answers(tmp_path):
    (tmp_path / "pod-web.yaml").write_text("a")
    (tmp_path / "pod-web.terse.1.md").write_text("b")
    assert read_files(tmp_path) == {("pod-web", "", 0): "a", ("pod-web", "terse", 1): "b"}
    lines = tmp_path / "answers.jsonl"
    lines.write_text('{"problem": "p", "answer": "x", "sample": 2}\n')
    assert read_files(lines) == {("p", "", 2): "x"}
    lines.write_text("{}\n")
    with pytest.raises(UsageError, match="line 1"):
        read_files(lines)
