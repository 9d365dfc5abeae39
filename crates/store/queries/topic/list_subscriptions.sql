-- leasehold_store::Store::list_subscriptions
SELECT topic, name, filter FROM list_subscriptions($1)
