"""Opens hostile files by the thousand under an audit hook that refuses to run anything.

Prints what happened, as JSON:

    PYTHONPATH=tests python -m unit.sources.hostile COUNT SEED
"""

import json
import random
import resource
import struct
import sys
import time
from collections import Counter

import torch

from joma.sources import _checkpoint, _names
from joma.sources._bytes import AbstractFiles
from joma.sources._errors import SourceError
from joma.sources._index import FileInfo
from unit.sources.hostile_headers import HEADERS, MARKUP, PATHS, safetensors, sharded
from unit.sources.hostile_pickles import PICKLES, archive

FILES = [*HEADERS, *PICKLES]
GIVEN_UP = {"os.system", "subprocess.Popen", "os.exec", "os.fork", "os.posix_spawn", "exec"}
GIVEN_UP |= {"pickle.find_class", "socket.connect", "shutil.rmtree", "os.remove", "ctypes.dlopen"}


class BytesFiles(AbstractFiles):
    """Files in memory."""

    def __init__(self, contents):
        self.contents = contents

    def listing(self):
        return {name: FileInfo(name, len(data), None) for name, data in self.contents.items()}

    def fetch(self, file, start, into):
        into[:] = self.contents[file.name][start : start + len(into)]


def opened(contents) -> dict[str, torch.Tensor]:
    """Every tensor of a revision with these files."""
    files = BytesFiles(contents)
    index = _checkpoint.index(files, "step0")
    return _checkpoint.read(files, index, index.tensors)


def floods() -> dict[str, dict[str, bytes]]:
    """Files of the largest size that is read at all, filled with what costs most."""
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<H", 8) + bytes(16)
    entries = b"".join(entry + b"%08d" % i for i in range(15_900_000 // 54))
    end = b"PK\x05\x06" + bytes(8) + struct.pack("<IIH", len(entries), 0, 0)
    pairs = b",".join(b'"%d":{}' % i for i in range(620_000))
    shards = {f"w{i}": "a.safetensors" for i in range(400_000)}
    return {
        "lists": safetensors(b'{"w":[' + b"[]," * 2_660_000 + b"[]]}", b""),
        "objects": safetensors(b'{"w":[' + b"{}," * 2_660_000 + b"{}]}", b""),
        "keys": safetensors(b"{" + pairs + b"}", b""),
        "dictionaries": archive(b"\x80\x02" + b"}" * 3_999_000 + b"."),
        "memo": archive(
            b"\x80\x02}" + b"".join(b"r" + struct.pack("<I", i) for i in range(799_000))
        ),
        "shards": sharded(shards),
        "directory": {"pytorch_model.bin": entries + end},
    }


def main(count: int, seed: int) -> None:
    def watch(event, arguments):
        if event in GIVEN_UP and watching:
            ran.append(event)
            raise RuntimeError(f"a hostile file reached {event}")

    watching, ran, accepted, odd, slowest, kinds = False, [], [], [], ("", 0.0), Counter()
    cases = [(f"flood {name}", files) for name, files in (floods() if seed == 0 else {}).items()]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.addaudithook(watch)
    for i in range(count):
        if i >= len(cases):
            maker = FILES[i % len(FILES)]
            name, files = maker.__name__, maker(random.Random(f"{seed} {i}"))
        else:
            name, files = cases[i]
        kinds[name] += 1
        start, watching = time.process_time(), True
        try:
            opened(files)
            accepted.append(f"{name} {seed} {i}")
        except SourceError as error:
            if not str(error).endswith((".", "]")) or len(str(error)) > 2000:
                odd.append(f"{name} {seed} {i}: {error}")
        except BaseException as error:
            odd.append(f"{name} {seed} {i}: {type(error).__name__} {error}"[:300])
        watching = False
        slowest = max(slowest, (name, time.process_time() - start), key=lambda pair: pair[1])
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    names = [*PATHS, *MARKUP]
    found = {"accepted": accepted, "odd": odd, "ran": ran, "slowest": slowest, "kinds": kinds}
    refused = sum(_names.parse(name).problem is not None for name in names)
    print(json.dumps({**found, "grown": (after - before) * 1024, "names": [refused, len(names)]}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
