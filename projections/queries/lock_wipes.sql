-- Whoever writes a wipe waits, and then finds what we have written.
lock table wipes in share mode
