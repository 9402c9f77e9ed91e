-- Rows of records that the topics no longer retain, so they can be neither replayed nor read again.
with letters as (
    delete from dead_letters where dead_at < to_timestamp(%(letters_before_ms)s / 1000.0)
),
replays as (
    delete from dead_letter_replays
    where replayed_at < to_timestamp(%(letters_before_ms)s / 1000.0)
),
copies as (
    delete from duplicates where at < to_timestamp(%(traces_before_ms)s / 1000.0)
)
delete from request_answers where at < to_timestamp(%(traces_before_ms)s / 1000.0)
