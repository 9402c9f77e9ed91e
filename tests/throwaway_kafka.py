"""Brokers of tests, which live for seconds and are thrown away."""

from typing import ClassVar

from typing_extensions import override

from headwater.streams.kafka.embedded import EmbeddedKafka


class ThrowawayKafka(EmbeddedKafka):
    """A broker whose directory is formatted as the first one of this process was.

    Kafka's tool is a Java that takes a second each time, to write the same two files: they have
    the features, and an id that nobody minds to share.

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
        if self._accounts or self.node > 1:
            super()._format(class_path)
        elif self._formatted:
            self._log_dir.mkdir()
            for name, content in self._formatted.items():
                (self._log_dir / name).write_bytes(content)
        else:
            super()._format(class_path)
            self._formatted.update(
                {file.name: file.read_bytes() for file in self._log_dir.iterdir()}
            )
