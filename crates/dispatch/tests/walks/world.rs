//! What happens to a walk from outside: time passes, producers cancel, somebody else holds rows.
//!
//! Time is not waited for: rows are made older. What somebody holds is left alone.

use leasehold_store::PARTITIONS;
use tokio_postgres::types::ToSql;

use crate::{call::Call, step::partition_in_play, walk::Walk};

impl Walk<'_> {
    pub(crate) async fn execute(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<bool, String> {
        let done = self.site.sql.execute(sql, params).await;
        done.map(|rows| rows > 0).map_err(|error| format!("{sql}: {error:?}"))
    }

    pub(super) async fn cancel(&mut self, slot: u8) -> Result<bool, String> {
        let (id, _) = self.key_of(slot);
        if self.locking {
            return Ok(false);
        }
        self.stirred = true;
        let cancelled = self.site.store.cancel(&[&id]).await.map_err(|error| error.to_string())?;
        self.tally.count("cancelled", usize::try_from(cancelled).unwrap_or(0));
        Ok(cancelled > 0)
    }

    pub(super) async fn lapse(&mut self, seat: Option<u8>) -> Result<bool, String> {
        let owner = match seat {
            Some(seat) => match self.owner(seat) {
                Some(owner) => Some(owner.name.clone()),
                None => return Ok(false),
            },
            None => None,
        };
        let owners = self.before.books.keys();
        let spared: Vec<String> = match owner {
            Some(owner) => owners.filter(|name| **name != owner).cloned().collect(),
            None => Vec::new(),
        };
        self.age_leases_but(&spared).await
    }

    /// Of everybody else.
    pub(crate) async fn age_leases_but(&self, spared: &[String]) -> Result<bool, String> {
        let leases = self
            .execute(
                "UPDATE partitions SET lease_expires_at = now() - interval '1 second'
                WHERE ctid = ANY (ARRAY(SELECT ctid FROM partitions WHERE queue_id = $1 AND owner <> ALL ($2)
                    FOR UPDATE SKIP LOCKED))",
                &[&self.queue, &spared],
            )
            .await?;
        let members = self
            .execute(
                "UPDATE dispatchers SET expires_at = now() - interval '1 second'
                WHERE ctid = ANY (ARRAY(SELECT ctid FROM dispatchers WHERE queue_id = $1 AND owner <> ALL ($2)
                    FOR UPDATE SKIP LOCKED))",
                &[&self.queue, &spared],
            )
            .await?;
        Ok(leases || members)
    }

    pub(super) async fn forget(&mut self) -> Result<bool, String> {
        // An hour is longer than any statement is late; but a reconciliation that has no fence yet does not count on it.
        let late = self.late.iter().map(|late| &late.call).chain(&self.ghosts).filter(|call| call.cycles());
        let relies = |call: &&Call| self.before.books.get(&call.owner).is_some_and(|book| !book.unfenced);
        let spared: Vec<&str> = late.filter(relies).map(|call| &*call.owner).collect();
        self.execute(
            "DELETE FROM dispatchers WHERE ctid = ANY (ARRAY(SELECT ctid FROM dispatchers d
                WHERE queue_id = $1 AND expires_at < now() AND owner <> ALL ($2)
                    AND NOT EXISTS (SELECT FROM partitions p WHERE p.queue_id = $1 AND p.owner = d.owner)
                FOR UPDATE SKIP LOCKED))",
            &[&self.queue, &spared],
        )
        .await
    }

    pub(super) async fn oust(&mut self, seat: u8, partition: Option<u8>) -> Result<bool, String> {
        let Some(owner) = self.owner(seat) else { return Ok(false) };
        let partitions: Vec<i16> = match partition {
            Some(partition) => vec![partition_in_play(partition)],
            None => (0..PARTITIONS).collect(),
        };
        let sql =
            "UPDATE partitions SET owner = NULL, lease_expires_at = NULL, draining = false, epoch = epoch + 1
            WHERE ctid = ANY (ARRAY(SELECT ctid FROM partitions WHERE queue_id = $1 AND owner = $2
                AND partition_id = ANY ($3) FOR UPDATE SKIP LOCKED))";
        let ousted = self.execute(sql, &[&self.queue, &owner.name, &partitions]).await?;
        self.ousted = ousted;
        Ok(ousted)
    }

    pub(crate) async fn make_due(&mut self) -> Result<bool, String> {
        self.stirred = true;
        let aged = self
            .execute(
                "UPDATE requests SET due_at = now() - interval '1 second'
                WHERE ctid = ANY (ARRAY(SELECT ctid FROM requests WHERE queue_id = $1 AND NOT ready FOR UPDATE SKIP LOCKED))",
                &[&self.queue],
            )
            .await?;
        if aged {
            self.site.store.promote_due(self.queue, 1000).await.map_err(|error| error.to_string())?;
        }
        Ok(aged)
    }

    pub(super) async fn pass_deadline(&mut self, slot: u8) -> Result<bool, String> {
        let (id, token) = self.key_of(slot);
        self.execute(
            "UPDATE requests SET deadline = now() - interval '1 second'
            WHERE ctid = ANY (ARRAY(SELECT ctid FROM requests WHERE id = $1 AND token = $2
                AND deadline > now() FOR UPDATE SKIP LOCKED))",
            &[&id, &token],
        )
        .await
    }

    pub(super) async fn lock_request(&mut self, slot: u8) -> Result<bool, String> {
        let (id, token) = self.key_of(slot);
        self.lock("SELECT FROM requests WHERE id = $1 AND token = $2 FOR UPDATE SKIP LOCKED", &[&id, &token])
            .await
    }

    pub(super) async fn lock_partition(&mut self, partition: u8) -> Result<bool, String> {
        let partition = partition_in_play(partition);
        let sql = "SELECT FROM partitions WHERE queue_id = $1 AND partition_id = $2 FOR UPDATE SKIP LOCKED";
        let queue = self.queue;
        self.lock(sql, &[&queue, &partition]).await
    }

    async fn lock(&mut self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<bool, String> {
        if self.locking {
            return Ok(false);
        }
        let text = |error: tokio_postgres::Error| error.to_string();
        self.site.locker.batch_execute("BEGIN").await.map_err(text)?;
        if self.site.locker.query(sql, params).await.map_err(text)?.is_empty() {
            self.site.locker.batch_execute("ROLLBACK").await.map_err(text)?;
            return Ok(false);
        }
        self.locking = true;
        Ok(true)
    }
}
