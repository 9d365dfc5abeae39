-- leasehold_store::Store::prune_marks
SELECT prune_marks()
