"""OpenAI's Python client and litellm, as their users call them, against BASE with TOKEN."""
import base64
import io
import struct
import sys
import urllib.request

import litellm
import openai

BASE, TOKEN = sys.argv[1:3]
CLIENT = openai.OpenAI(base_url=BASE, api_key=TOKEN, max_retries=0)


def size(png):
    """Width and height of a PNG."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n", png[:20]
    return struct.unpack(">II", png[16:24])


def decoded(made):
    return [base64.b64decode(x.b64_json) for x in made.data]


def models():
    names = [m.id for m in CLIENT.models.list()]
    assert names == ["demo", "demo-edit"], names
    assert CLIENT.models.retrieve("demo").id == "demo"


def generate():
    made = CLIENT.images.generate(model="demo", prompt="a blue star on a white background", n=2, size="64x96",
                                  extra_body={"steps": 2})
    pictures = decoded(made)
    assert [size(p) for p in pictures] == [(64, 96)] * 2 and pictures[0] != pictures[1]


def same_seed():
    one = [decoded(CLIENT.images.generate(model="demo", prompt="x", size="64x64", extra_body={"steps": 2, "seed": s}))
           for s in (7, 7, 8)]
    assert one[0] == one[1] != one[2]


def url():
    made = CLIENT.images.generate(model="demo", prompt="x", size="64x64", response_format="url",
                                  extra_body={"steps": 2})
    ask = urllib.request.Request(made.data[0].url, headers={"Authorization": "Bearer " + TOKEN})
    assert size(urllib.request.urlopen(ask).read()) == (64, 64)


def jpeg():
    made = CLIENT.images.generate(model="demo", prompt="x", size="64x64", output_format="jpeg", output_compression=50,
                                  extra_body={"steps": 2})
    assert decoded(made)[0][:3] == b"\xff\xd8\xff" and made.output_format == "jpeg"


def edit():
    picture = decoded(CLIENT.images.generate(model="demo", prompt="x", size="64x64", extra_body={"steps": 2}))[0]
    made = CLIENT.images.edit(model="demo-edit", image=("a.png", io.BytesIO(picture), "image/png"), prompt="a star",
                              extra_body={"strength": 0.5})
    assert size(decoded(made)[0]) == (128, 128)
    made = CLIENT.images.edit(model="demo-edit", image=[("a.png", io.BytesIO(picture), "image/png")], prompt="a star")
    assert size(decoded(made)[0]) == (128, 128)


def stream():
    events = list(CLIENT.images.generate(model="demo", prompt="x", size="64x64", stream=True, partial_images=2,
                                         extra_body={"steps": 40}))
    kinds = [e.type for e in events]
    assert kinds[-1] == "image_generation.completed" and set(kinds[:-1]) <= {"image_generation.partial_image"}, kinds
    assert size(base64.b64decode(events[-1].b64_json)) == (64, 64)
    assert len(kinds) > 1, "no partial picture"
    assert base64.b64decode(events[0].b64_json)[:3] == b"\xff\xd8\xff" and events[0].partial_image_index == 0


def refused(kind, param, **request):
    try:
        CLIENT.images.generate(**request)
    except kind as e:
        assert e.param == param and e.code and e.body["message"], e
    else:
        raise AssertionError(f"{request} was taken")


def errors():
    refused(openai.NotFoundError, "model", model="nobody", prompt="x")
    refused(openai.BadRequestError, "size", model="demo", prompt="x", size="huge")
    refused(openai.BadRequestError, "n", model="demo", prompt="x", n=99)
    refused(openai.BadRequestError, "colour", model="demo", prompt="x", extra_body={"colour": 1})
    try:
        openai.OpenAI(base_url=BASE, api_key="wrong", max_retries=0).models.list()
    except openai.AuthenticationError as e:
        assert e.code == "invalid_api_key", e
    else:
        raise AssertionError("a wrong token was taken")


def with_litellm():
    made = litellm.image_generation(model="openai/demo", prompt="x", size="64x64", api_base=BASE, api_key=TOKEN)
    assert size(base64.b64decode(made.data[0].b64_json)) == (64, 64)
    try:
        litellm.image_generation(model="openai/nobody", prompt="x", api_base=BASE, api_key=TOKEN)
    except litellm.NotFoundError as e:
        assert "nobody" in str(e), e
    else:
        raise AssertionError("a template that is not there was taken")


def main():
    bad = 0
    for part in (models, generate, same_seed, url, jpeg, edit, stream, errors, with_litellm):
        try:
            part()
            print(part.__name__, "ok", flush=True)
        except Exception as e:  # the others still run
            bad += 1
            print(part.__name__, "FAILS:", repr(e)[:600], flush=True)
    print(f"openai {openai.__version__}: {bad} parts fail")
    sys.exit(bad > 0)


main()
