-- Writers of wipes wait, and then see the rows of this transaction.
lock table wipes in share mode
