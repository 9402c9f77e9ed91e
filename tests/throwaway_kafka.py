"""Brokers of tests, which live for seconds and are thrown away."""

import base64
import re
import secrets
from typing import ClassVar, Final

from typing_extensions import override

from headwater.streams.kafka.embedded import EmbeddedKafka

_IDS: Final = re.compile(rb"^(node\.id|directory\.id)=.*$", re.MULTILINE)


class ThrowawayKafka(EmbeddedKafka):
    """A broker whose directory is formatted as the first one of this process was.

    Kafka's tool is a Java that takes a second each time, to write the same two files: they have
    the features, and ids. Nobody minds to share that of the cluster; those of the node and of its
    directory are its own.

    Its Java leaves out the compiler that pays off after minutes only: a start takes 1.1 s of
    processor time instead of 1.8, and the first 160,000 records half of it.
    """

    _formatted: ClassVar[dict[str, bytes]] = {}

    @override
    def _java(self, class_path: str, main: str, *arguments: str) -> list[str]:
        java, *rest = super()._java(class_path, main, *arguments)
        return [java, "-XX:TieredStopAtLevel=1", *rest]

    @override
    def _format(self, class_path: str) -> None:
        if self._accounts:
            super()._format(class_path)
        elif self._formatted:
            self._log_dir.mkdir()
            ids = {b"node.id": b"%d" % self.node, b"directory.id": _random_id()}
            for name, content in self._formatted.items():
                ours = _IDS.sub(lambda line: b"%s=%s" % (line[1], ids[line[1]]), content)
                (self._log_dir / name).write_bytes(ours)
        else:
            super()._format(class_path)
            self._formatted.update(
                {file.name: file.read_bytes() for file in self._log_dir.iterdir()}
            )


def _random_id() -> bytes:
    return b"t" + base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=")[1:]
