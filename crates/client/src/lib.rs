//! The client: what a holder needs to own work and to know until when.
