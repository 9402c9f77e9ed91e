-- Waits for transactions of older epochs, which lock the row for share.
insert into step_epochs as known (partition, epoch)
values (%(partition)s, %(epoch)s)
on conflict (partition) do update
set epoch = excluded.epoch,
    ticket = case when known.epoch = excluded.epoch then known.ticket else excluded.ticket end
where known.epoch <= excluded.epoch
returning ticket
