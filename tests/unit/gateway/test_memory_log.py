"""The fake of the delivery log keeps the contract that the real one keeps."""

import asyncio

from tests.fakes.delivery_log import DeliveryLogContract, MemoryLog, Scenario


class TestMemoryLog(DeliveryLogContract):
    def run(self, scenario: Scenario) -> None:
        async def whole() -> None:
            log = MemoryLog()
            await log.start()
            try:
                await scenario(log)
            finally:
                await log.stop()

        asyncio.run(whole())
