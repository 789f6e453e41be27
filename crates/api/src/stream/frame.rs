//! Frames and the messages they travel in.

use ::lease::{
    Acquire, Acquired, HandoffState, HandoffStep, Holder, Invalid, Kept, Lease, Renewals, Renewed,
    Watching,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::{
    Departing, Encoding, Held, Lost, Position, Welcome, values,
    wire::{Reader, put_bytes, put_number},
};
use crate::{FieldError, PresenceRequest, Problem, authority, parse_value};

/// How many frames of one message are read. The rest is refused.
const MAX_FRAMES: usize = 4_096;

/// One frame.
#[derive(Clone, PartialEq, Debug)]
pub struct Frame<T> {
    /// Of the operation that this asks for or answers; 0 for what belongs to none.
    pub id: u64,
    /// What it says.
    pub body: T,
}

/// A frame that could not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unread {
    /// Of its operation; 0 when not even that could be read.
    pub id: u64,
    /// The type, when it is one that is not known here; `None` when it is known and the rest is wrong.
    pub unknown_type: Option<String>,
    /// What is wrong.
    pub error: FieldError,
}

/// What a holder sends.
#[derive(Clone, PartialEq, Debug)]
pub enum Up {
    /// Asks for keys (L1–L6); answered by [`Down::Acquired`], after a wait if it asks for one.
    Acquire(Box<Acquire>),
    /// Keeps leases (L7–L9); answered by [`Down::Renewed`].
    Renew(Renewals),
    /// Keeps everything that the holder has (L7–L9); answered by [`Down::Kept`].
    Keep,
    /// Gives a lease back (L16); answered by [`Down::Released`].
    Release(Held),
    /// One step of a handoff (L18); answered by [`Down::Handed`].
    Handoff(Box<HandoffStep>),
    /// The holder departs, or took over its own name (L15); answered by [`Down::Departed`].
    Depart(Departing),
    /// The holder announces itself; answered by [`Down::Acquired`].
    Presence(PresenceRequest),
    /// Follows changes (L20), until it is cancelled; answered by one [`Down::Notice`] after the other.
    Watch(Box<Watching>),
    /// Where the wait with this id stands; answered by [`Down::Position`].
    Position(u64),
    /// Ends the wait or the watch with this id. A wait is answered with a failure whose outcome is
    /// unknown: it may have been granted in the same moment.
    Cancel(u64),
    /// The holder closes its stream gracefully and goes on without it: what follows is not its death.
    Goodbye,
}

/// What a holder is sent.
#[derive(Clone, PartialEq, Debug)]
pub enum Down {
    /// The first frame of a connection.
    Welcome(Box<Welcome>),
    /// The answer to an acquire, or to the announcement of a presence.
    Acquired(Acquired),
    /// The answer to a renewal: an outcome per lease.
    Renewed(Vec<Renewed>),
    /// The answer to keeping everything: one for all of it.
    Kept(Kept),
    /// The answer to a release: whether the lease ended now.
    Released(bool),
    /// The answer to a step of a handoff.
    Handed(Box<HandoffState>),
    /// The answer to a departure: what was released.
    Departed(Vec<Lease>),
    /// The opening of a watch, a change, or its end.
    Notice(Box<authority::Frame>),
    /// The answer to a question for a place in a queue.
    Position(Position),
    /// An operation that did not succeed; with the id 0, a message that could not be read.
    Failed(Box<Problem>),
    /// A lease of this holder is gone (L17).
    Lost(Lost),
    /// Losses were missed: renew everything to learn what is still held.
    Missed,
    /// The server closes the stream, for this reason; the leases are untouched.
    Goodbye(String),
}

/// The types of frames: code and word of each.
pub(super) const UP: [(u8, &str); 11] = [
    (1, "acquire"),
    (2, "renew"),
    (3, "release"),
    (4, "handoff"),
    (5, "depart"),
    (6, "presence"),
    (7, "watch"),
    (8, "position"),
    (9, "cancel"),
    (10, "goodbye"),
    (11, "keep"),
];
pub(super) const DOWN: [(u8, &str); 13] = [
    (64, "welcome"),
    (65, "acquired"),
    (66, "renewed"),
    (67, "released"),
    (68, "handed"),
    (69, "departed"),
    (70, "notice"),
    (71, "position"),
    (72, "failed"),
    (73, "lost"),
    (74, "missed"),
    (75, "goodbye"),
    (76, "kept"),
];

/// One direction of a stream.
trait Direction: Sized {
    const TYPES: &'static [(u8, &'static str)];

    fn code(&self) -> u8;
    /// Adds the binary body.
    fn put(&self, out: &mut Vec<u8>, own: &Holder);
    /// The JSON body.
    fn value(&self) -> Value;
    fn from_bytes(code: u8, body: &mut Reader<'_>, own: &Holder) -> Result<Self, FieldError>;
    fn from_value(code: u8, body: Value, own: &Holder) -> Result<Self, FieldError>;

    fn word(&self) -> &'static str {
        let code = self.code();
        let found = Self::TYPES.iter().find(|(known, _)| *known == code);
        found.map_or("unknown", |(_, word)| *word)
    }
}

/// A body without a layout of its own is its JSON in both encodings.
fn put_json(out: &mut Vec<u8>, value: &impl Serialize) {
    if let Ok(bytes) = serde_json::to_vec(value) {
        out.extend_from_slice(&bytes);
    }
}

fn rest<T: DeserializeOwned>(body: &mut Reader<'_>) -> Result<T, FieldError> {
    parse_value(body.rest())
}

/// The one way in which JSON is read names the field that is wrong.
fn parsed<T: DeserializeOwned>(body: &Value) -> Result<T, FieldError> {
    parse_value(body.to_string().as_bytes())
}

fn value_of(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

fn laid<T>(body: Result<T, Invalid>) -> Result<T, FieldError> {
    body.map_err(FieldError::from)
}

impl Direction for Up {
    const TYPES: &'static [(u8, &'static str)] = &UP;

    fn code(&self) -> u8 {
        match self {
            Self::Acquire(_) => 1,
            Self::Renew(_) => 2,
            Self::Release(_) => 3,
            Self::Handoff(_) => 4,
            Self::Depart(_) => 5,
            Self::Presence(_) => 6,
            Self::Watch(_) => 7,
            Self::Position(_) => 8,
            Self::Cancel(_) => 9,
            Self::Goodbye => 10,
            Self::Keep => 11,
        }
    }

    fn put(&self, out: &mut Vec<u8>, _: &Holder) {
        match self {
            Self::Acquire(request) => values::put_acquire(out, request),
            Self::Renew(renewals) => values::put_renewals(out, renewals),
            Self::Release(held) => values::put_held(out, held),
            Self::Handoff(step) => put_json(out, step),
            Self::Depart(how) => put_json(out, how),
            Self::Presence(presence) => put_json(out, presence),
            Self::Watch(watching) => put_json(out, watching),
            Self::Position(id) | Self::Cancel(id) => put_number(out, *id),
            Self::Goodbye | Self::Keep => {}
        }
    }

    fn value(&self) -> Value {
        match self {
            Self::Acquire(request) => value_of(request),
            Self::Renew(renewals) => value_of(renewals),
            Self::Release(held) => value_of(held),
            Self::Handoff(step) => value_of(step),
            Self::Depart(how) => value_of(how),
            Self::Presence(presence) => value_of(presence),
            Self::Watch(watching) => value_of(watching),
            Self::Position(id) | Self::Cancel(id) => json!(id),
            Self::Goodbye | Self::Keep => Value::Null,
        }
    }

    fn from_bytes(code: u8, body: &mut Reader<'_>, own: &Holder) -> Result<Self, FieldError> {
        Ok(match code {
            1 => Self::Acquire(Box::new(laid(values::acquire(body, own))?)),
            2 => Self::Renew(laid(values::renewals(body))?),
            3 => Self::Release(laid(values::held(body))?),
            4 => Self::Handoff(rest(body)?),
            5 => Self::Depart(rest(body)?),
            6 => Self::Presence(rest(body)?),
            7 => Self::Watch(rest(body)?),
            8 => Self::Position(laid(body.number())?),
            9 => Self::Cancel(laid(body.number())?),
            11 => Self::Keep,
            _ => Self::Goodbye,
        })
    }

    fn from_value(code: u8, mut body: Value, own: &Holder) -> Result<Self, FieldError> {
        Ok(match code {
            1 => {
                if let Some(fields) = body.as_object_mut() {
                    fields.entry("holder").or_insert_with(|| value_of(own));
                }
                Self::Acquire(parsed(&body)?)
            }
            2 if body.is_null() => Self::Renew(Renewals::All),
            2 => Self::Renew(parsed(&body)?),
            3 => Self::Release(parsed(&body)?),
            4 => Self::Handoff(parsed(&body)?),
            5 => Self::Depart(parsed(&body)?),
            6 if body.is_null() => Self::Presence(PresenceRequest::default()),
            6 => Self::Presence(parsed(&body)?),
            7 => Self::Watch(parsed(&body)?),
            8 => Self::Position(parsed(&body)?),
            9 => Self::Cancel(parsed(&body)?),
            11 => Self::Keep,
            _ => Self::Goodbye,
        })
    }
}

impl Direction for Down {
    const TYPES: &'static [(u8, &'static str)] = &DOWN;

    fn code(&self) -> u8 {
        match self {
            Self::Welcome(_) => 64,
            Self::Acquired(_) => 65,
            Self::Renewed(_) => 66,
            Self::Released(_) => 67,
            Self::Handed(_) => 68,
            Self::Departed(_) => 69,
            Self::Notice(_) => 70,
            Self::Position(_) => 71,
            Self::Failed(_) => 72,
            Self::Lost(_) => 73,
            Self::Missed => 74,
            Self::Goodbye(_) => 75,
            Self::Kept(_) => 76,
        }
    }

    fn put(&self, out: &mut Vec<u8>, own: &Holder) {
        match self {
            Self::Welcome(welcome) => put_json(out, welcome),
            Self::Acquired(acquired) => values::put_acquired(out, acquired, own),
            Self::Renewed(renewed) => values::put_renewed(out, renewed, own),
            Self::Released(ended) => out.push(u8::from(*ended)),
            Self::Handed(state) => put_json(out, state),
            Self::Departed(leases) => put_json(out, leases),
            Self::Notice(frame) => put_json(out, frame),
            Self::Position(position) => put_json(out, position),
            Self::Failed(problem) => put_json(out, problem),
            Self::Lost(lost) => values::put_lost(out, lost),
            Self::Missed => {}
            Self::Goodbye(reason) => put_json(out, reason),
            Self::Kept(kept) => put_json(out, kept),
        }
    }

    fn value(&self) -> Value {
        match self {
            Self::Welcome(welcome) => value_of(welcome),
            Self::Acquired(acquired) => value_of(acquired),
            Self::Renewed(renewed) => value_of(renewed),
            Self::Released(ended) => json!(ended),
            Self::Handed(state) => value_of(state),
            Self::Departed(leases) => value_of(leases),
            Self::Notice(frame) => value_of(frame),
            Self::Position(position) => value_of(position),
            Self::Failed(problem) => value_of(problem),
            Self::Lost(lost) => value_of(lost),
            Self::Missed => Value::Null,
            Self::Goodbye(reason) => json!(reason),
            Self::Kept(kept) => value_of(kept),
        }
    }

    fn from_bytes(code: u8, body: &mut Reader<'_>, own: &Holder) -> Result<Self, FieldError> {
        Ok(match code {
            64 => Self::Welcome(rest(body)?),
            65 => Self::Acquired(laid(values::acquired(body, own))?),
            66 => Self::Renewed(laid(values::renewed(body, own))?),
            67 => Self::Released(laid(body.byte())? == 1),
            68 => Self::Handed(rest(body)?),
            69 => Self::Departed(rest(body)?),
            70 => Self::Notice(rest(body)?),
            71 => Self::Position(rest(body)?),
            72 => Self::Failed(rest(body)?),
            73 => Self::Lost(laid(values::lost(body))?),
            74 => Self::Missed,
            76 => Self::Kept(rest(body)?),
            _ => Self::Goodbye(rest(body)?),
        })
    }

    fn from_value(code: u8, body: Value, _: &Holder) -> Result<Self, FieldError> {
        Ok(match code {
            64 => Self::Welcome(parsed(&body)?),
            65 => Self::Acquired(parsed(&body)?),
            66 => Self::Renewed(parsed(&body)?),
            67 => Self::Released(parsed(&body)?),
            68 => Self::Handed(parsed(&body)?),
            69 => Self::Departed(parsed(&body)?),
            70 => Self::Notice(parsed(&body)?),
            71 => Self::Position(parsed(&body)?),
            72 => Self::Failed(parsed(&body)?),
            73 => Self::Lost(parsed(&body)?),
            74 => Self::Missed,
            76 => Self::Kept(parsed(&body)?),
            _ => Self::Goodbye(parsed(&body)?),
        })
    }
}

/// A WebSocket message to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    /// A binary message.
    Binary(Vec<u8>),
    /// A text message.
    Text(String),
}

/// Frames that go out in one message.
#[derive(Debug)]
pub struct Batch {
    encoding: Encoding,
    own: Holder,
    out: Vec<u8>,
    /// For the body, whose length stands before it.
    scratch: Vec<u8>,
    frames: usize,
}

impl Batch {
    /// Nothing yet, on the stream of this holder.
    pub fn new(encoding: Encoding, own: Holder) -> Self {
        Self {
            encoding,
            own,
            out: Vec::new(),
            scratch: Vec::new(),
            frames: 0,
        }
    }

    /// Adds a frame that a holder sends.
    pub fn up(&mut self, id: u64, frame: &Up) {
        self.add(id, frame);
    }

    /// Adds a frame that a holder sends, unless it has more than `most` bytes.
    pub fn up_within(&mut self, id: u64, frame: &Up, most: usize) -> bool {
        let before = self.out.len();
        self.add(id, frame);
        let fits = self.out.len() - before <= most;
        if !fits {
            self.out.truncate(before);
            self.frames -= 1;
        }
        fits
    }

    /// Adds a frame that a server sends.
    pub fn down(&mut self, id: u64, frame: &Down) {
        self.add(id, frame);
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    fn add(&mut self, id: u64, frame: &impl Direction) {
        self.frames += 1;
        match self.encoding {
            Encoding::Binary => {
                self.scratch.clear();
                self.scratch.push(frame.code());
                put_number(&mut self.scratch, id);
                frame.put(&mut self.scratch, &self.own);
                put_bytes(&mut self.out, &self.scratch);
            }
            Encoding::Json => {
                let mut object = Map::new();
                object.insert("type".into(), frame.word().into());
                if id != 0 {
                    object.insert("id".into(), id.into());
                }
                let body = frame.value();
                if !body.is_null() {
                    object.insert("body".into(), body);
                }
                if self.frames > 1 {
                    self.out.push(b',');
                }
                put_json(&mut self.out, &object);
            }
        }
    }

    /// The message, if there is anything in it. The batch is empty afterwards.
    pub fn take(&mut self) -> Option<Payload> {
        let frames = std::mem::take(&mut self.frames);
        if frames == 0 {
            return None;
        }
        let out = std::mem::take(&mut self.out);
        Some(match self.encoding {
            Encoding::Binary => Payload::Binary(out),
            Encoding::Json => {
                let text = String::from_utf8(out).unwrap_or_default();
                Payload::Text(if frames == 1 {
                    text
                } else {
                    format!("[{text}]")
                })
            }
        })
    }
}

/// Reads a message of a holder. A frame that cannot be read does not keep the others from being read.
pub fn read_up(encoding: Encoding, message: &[u8], own: &Holder) -> Vec<Result<Frame<Up>, Unread>> {
    read(encoding, message, own)
}

/// Reads a message of a server. A frame that cannot be read does not keep the others from being read.
pub fn read_down(
    encoding: Encoding,
    message: &[u8],
    own: &Holder,
) -> Vec<Result<Frame<Down>, Unread>> {
    read(encoding, message, own)
}

fn wrong(id: u64, error: FieldError) -> Unread {
    Unread {
        id,
        unknown_type: None,
        error,
    }
}

fn unknown(id: u64, word: String) -> Unread {
    Unread {
        id,
        unknown_type: Some(word),
        error: FieldError::new("type", "a type of frame that is known here"),
    }
}

fn too_many() -> Unread {
    wrong(0, FieldError::new("message", "at most 4096 frames"))
}

fn read<T: Direction>(
    encoding: Encoding,
    message: &[u8],
    own: &Holder,
) -> Vec<Result<Frame<T>, Unread>> {
    let mut frames = Vec::new();
    match encoding {
        Encoding::Binary => {
            let mut reader = Reader::new(message);
            while !reader.is_empty() {
                if frames.len() == MAX_FRAMES {
                    frames.push(Err(too_many()));
                    break;
                }
                match reader.bytes() {
                    Ok(bytes) => frames.push(binary(bytes, own)),
                    Err(invalid) => {
                        // Where the next frame begins is not known.
                        frames.push(Err(wrong(0, invalid.into())));
                        break;
                    }
                }
            }
        }
        Encoding::Json => match parse_value::<Value>(message) {
            Ok(Value::Array(values)) => {
                let more = values.len() > MAX_FRAMES;
                let values = values.into_iter().take(MAX_FRAMES);
                frames.extend(values.map(|value| readable(value, own)));
                if more {
                    frames.push(Err(too_many()));
                }
            }
            Ok(value) => frames.push(readable(value, own)),
            Err(error) => frames.push(Err(wrong(0, error))),
        },
    }
    frames
}

fn binary<T: Direction>(bytes: &[u8], own: &Holder) -> Result<Frame<T>, Unread> {
    let mut reader = Reader::new(bytes);
    let head = (|| Ok((reader.byte()?, reader.number()?)))();
    let (code, id) = head.map_err(|invalid: Invalid| wrong(0, invalid.into()))?;
    if !T::TYPES.iter().any(|(known, _)| *known == code) {
        return Err(unknown(id, code.to_string()));
    }
    let body = T::from_bytes(code, &mut reader, own).map_err(|error| wrong(id, error))?;
    let end = reader.end().map_err(|invalid| wrong(id, invalid.into()));
    end.map(|()| Frame { id, body })
}

fn readable<T: Direction>(value: Value, own: &Holder) -> Result<Frame<T>, Unread> {
    let Value::Object(mut fields) = value else {
        let error = FieldError::new("message", "a JSON object, or an array of them");
        return Err(wrong(0, error));
    };
    let id = match fields.remove("id") {
        None => 0,
        Some(id) => id
            .as_u64()
            .ok_or_else(|| wrong(0, FieldError::new("id", "a whole number of at least 0")))?,
    };
    let Some(Value::String(word)) = fields.remove("type") else {
        return Err(wrong(id, FieldError::new("type", "a text")));
    };
    let body = fields.remove("body").unwrap_or_default();
    if let Some(field) = fields.keys().next() {
        let error = FieldError::new(field, "nothing but type, id and body");
        return Err(wrong(id, error));
    }
    match T::TYPES.iter().find(|(_, known)| *known == word) {
        None => Err(unknown(id, word)),
        Some((code, _)) => T::from_value(*code, body, own)
            .map(|body| Frame { id, body })
            .map_err(|error| wrong(id, error)),
    }
}
