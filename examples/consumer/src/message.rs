//! A message as it came from the broker.

use lapin::message::Delivery;
use leasehold_api::Event;

/// An event and the id of the message that brought it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The same whenever the same event is published again.
    pub id: String,
    /// What happened.
    pub event: Event<'static>,
}

impl Message {
    /// The authority it comes from: a store that was rebuilt is another one, whose revisions and tokens
    /// begin anew. Empty for one without an identity.
    pub fn authority(&self) -> &str {
        self.id
            .rsplit_once('-')
            .map_or("", |(authority, _)| authority)
    }

    /// Reads a delivery, or says what is wrong with it.
    pub(crate) fn read(delivery: &Delivery) -> Result<Self, String> {
        let id = delivery.properties.message_id();
        let id = id.as_ref().ok_or("it has no message_id")?.to_string();
        let event = serde_json::from_slice(&delivery.data).map_err(|error| error.to_string())?;
        Ok(Self { id, event })
    }
}
