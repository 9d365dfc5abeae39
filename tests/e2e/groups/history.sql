-- What is handed out and what ends, as the rows themselves tell it: written in the same transactions, so that it says
-- neither more nor less than what was committed. Whoever follows another in a group was let by the other's commit, so
-- that numbers of one group are in order.
CREATE SCHEMA witness;

CREATE TABLE witness.history (
    n           bigserial PRIMARY KEY,
    seq         bigint NOT NULL,
    group_id    text NOT NULL,
    is_claim    boolean NOT NULL,        -- else its end
    too_early   boolean NOT NULL         -- claimed under somebody else's lock that had not lapsed
);

CREATE FUNCTION witness.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO witness.history (seq, group_id, is_claim, too_early) VALUES (OLD.seq, OLD.group_id, false, false);
    ELSIF NEW.epoch <> 0 AND NEW.deliveries > OLD.deliveries THEN
        INSERT INTO witness.history (seq, group_id, is_claim, too_early)
            VALUES (OLD.seq, OLD.group_id, true, OLD.epoch = -1 AND OLD.locked_until > clock_timestamp());
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER note AFTER UPDATE OR DELETE ON requests FOR EACH ROW WHEN (OLD.group_id IS NOT NULL)
    EXECUTE FUNCTION witness.note();
