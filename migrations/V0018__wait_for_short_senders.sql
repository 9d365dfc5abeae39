-- Refused while a transaction that sends to the queue stays open. Senders that come and go are waited for, a second at most,
-- and by asking again and again: whoever waited in line would make the senders after it wait, too. An answer of ours may also
-- be read before the lock it is about is given back.
CREATE OR REPLACE FUNCTION lock_out_senders(q queues) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    topic text;
    until timestamptz := clock_timestamp() + interval '1 second';
BEGIN
    IF NOT sees_commits() THEN
        PERFORM fail('LH001', format('this needs a transaction at READ COMMITTED, not %s',
            upper(current_setting('transaction_isolation'))));
    END IF;
    SELECT t.name INTO topic FROM subscriptions s JOIN queues t ON t.queue_id = s.topic_id WHERE s.queue_id = q.queue_id;
    -- The topic first, as its senders do.
    WHILE NOT pg_try_advisory_xact_lock(sending_to(coalesce(topic, q.name))) OR NOT pg_try_advisory_xact_lock(sending_to(q.name)) LOOP
        IF clock_timestamp() > until THEN
            PERFORM fail('55P03', format('queue "%s" is being sent to by an open transaction', q.name));
        END IF;
        PERFORM pg_sleep(0.005);
    END LOOP;
END
$$;
