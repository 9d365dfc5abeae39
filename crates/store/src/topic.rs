//! Topics: what is sent to one is copied to each of its subscriptions that accepts it.

use crate::{Error, Store, statement, store::column};

/// A subscription. Its messages are in the queue of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Whose messages it gets.
    pub topic: String,
    /// Its own name, and its queue's.
    pub name: String,
    /// A predicate over the message, in the SQL/JSON path language. None: everything is accepted.
    pub filter: Option<String>,
}

impl Store {
    /// Subscribes the queue `name` to a topic; either is made when it does not exist. Of a subscription that is
    /// there, the filter is changed. `filter` none or empty: everything is accepted. Safe to repeat.
    ///
    /// # Errors
    /// [`Error::InvalidFilter`], [`Error::NameConflict`], [`Error::InvalidArgument`]; nothing is changed then.
    pub async fn subscribe(&self, topic: &str, name: &str, filter: Option<&str>) -> Result<(), Error> {
        self.query(&statement::TOPIC_SUBSCRIBE, &[&topic, &name, &filter]).await.map(|_| ())
    }

    /// Ends a subscription, and deletes its queue with what it holds if `force`.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::InvalidArgument`] when the queue holds messages, unless `force`.
    pub async fn unsubscribe(&self, topic: &str, name: &str, force: bool) -> Result<(), Error> {
        self.query(&statement::TOPIC_UNSUBSCRIBE, &[&topic, &name, &force]).await.map(|_| ())
    }

    /// The subscriptions of a topic; `topic` none: of all.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn list_subscriptions(&self, topic: Option<&str>) -> Result<Vec<Subscription>, Error> {
        let rows = self.query(&statement::TOPIC_LIST_SUBSCRIPTIONS, &[&topic]).await?;
        rows.iter()
            .map(|row| {
                Ok(Subscription {
                    topic: column(row, "topic")?,
                    name: column(row, "name")?,
                    filter: column(row, "filter")?,
                })
            })
            .collect()
    }
}
