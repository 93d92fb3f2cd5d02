"""What the tests of the HTML report share: runs in files, and reading the page's data back."""

import base64
import json
import struct
import zlib
from collections import defaultdict
from html.parser import HTMLParser

import numpy as np

from hookline.record.runs import RunData, load_rank
from hookline.record.store import Store


def stored(folder, *ranks):
    """A run of these tables, one for each rank, as it comes from its files."""
    read = []
    for number, tables in enumerate(ranks):
        path = folder / f"run.hookline.{number}"
        with Store(path) as store:
            store.write(tables)
        read.append(load_rank(path))
    return RunData(read)


class Page(HTMLParser):
    """The elements of a page, and its data by rank and table."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts = [], [], defaultdict(str)
        self.data = defaultdict(dict)
        self._open = "", {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *each) for each in attrs]
        self._open = tag, dict(attrs)

    def handle_endtag(self, tag):
        self._open = "", {}

    def handle_data(self, data):
        tag, attributes = self._open
        if "data-table" in attributes and data.strip():
            rank, table = int(attributes["data-rank"]), attributes["data-table"]
            self.data[rank][table] = rows_of(data)
            return
        self.texts[tag] += data


def rows_of(text):
    """The rows of a packed table, as dicts."""
    raw = zlib.decompress(base64.b64decode(text), wbits=-zlib.MAX_WBITS)
    (length,) = struct.unpack_from("<I", raw)
    table = json.loads(raw[4 : 4 + length])
    rows = [{} for _ in range(table["count"])]
    for name, places in table["places"].items():
        for row, place in zip(rows, places, strict=True):
            row[name] = table["texts"][place]
    for name, numbers in table["numbers"].items():
        for row, number in zip(rows, numbers, strict=True):
            row[name] = float(number) if isinstance(number, str) else number
    upper, lower = np.frombuffer(raw[4 + length :], np.uint8).reshape(2, -1).astype(np.uint32)
    numbers = ((upper << 24) | (lower << 16)).view(np.float32).tolist()
    for row in rows if numbers else ():
        row["values"], numbers = numbers[: row["bins"]], numbers[row["bins"] :]
    assert not numbers
    return rows
