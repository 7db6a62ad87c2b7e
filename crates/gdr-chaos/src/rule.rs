//! Rules: a fault, and the conditions that select where it strikes.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::error::{Problem, ScenarioError};
use crate::fault::{Class, Fault, Icrc, PlacementOrder, RefusedErrno, StatusCode};
use crate::fields::Fields;
use crate::value::{Share, duration_text, size_text};

/// The direction of packets, as the device sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Outbound packets.
    Out,
    /// Inbound packets.
    In,
}

impl Direction {
    const ALL: &[Self] = &[Self::Out, Self::In];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::In => "in",
        }
    }
}

/// The work queue of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// The send queue.
    Send,
    /// The receive queue.
    Recv,
}

impl Queues {
    const ALL: &[Self] = &[Self::Send, Self::Recv];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Recv => "recv",
        }
    }
}

/// The kind of memory in a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Host memory.
    Host,
    /// GPU memory, including memory exported as a dma-buf.
    Gpu,
}

impl Memory {
    const ALL: &[Self] = &[Self::Host, Self::Gpu];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Gpu => "gpu",
        }
    }
}

/// A set of message kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// SENDs.
    pub const SEND: Self = Self(1);
    /// WRITEs.
    pub const WRITE: Self = Self(2);
    /// READ requests and responses.
    pub const READ: Self = Self(4);
    /// Atomic requests and responses.
    pub const ATOMIC: Self = Self(8);
    /// Datagrams.
    pub const DATAGRAM: Self = Self(16);
    /// Acknowledgements.
    pub const ACK: Self = Self(32);
    /// All kinds except acknowledgements, whose number depends on timing.
    pub const MESSAGES: Self = Self(31);

    const NAMES: &[(Self, &str)] = &[
        (Self::SEND, "send"),
        (Self::WRITE, "write"),
        (Self::READ, "read"),
        (Self::ATOMIC, "atomic"),
        (Self::DATAGRAM, "datagram"),
        (Self::ACK, "ack"),
    ];

    /// Returns whether this set includes all of `other`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn parse(text: &str) -> Option<Self> {
        let mut kinds = Self(0);
        for word in text.split('+') {
            let (kind, _) = Self::NAMES.iter().find(|(_, name)| *name == word)?;
            kinds.0 |= kind.0;
        }
        Some(kinds)
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES.iter().filter(|(kind, _)| self.contains(*kind));
        for (at, (_, name)) in names.enumerate() {
            let plus = if at > 0 { "+" } else { "" };
            write!(f, "{plus}{name}")?;
        }
        Ok(())
    }
}

/// When a device fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// At this time after the process's first packet.
    At(Duration),
    /// After this many bytes of packets, both directions combined.
    After(u64),
}

/// A fault, and the conditions that select where it strikes. `None` matches anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What goes wrong.
    pub fault: Fault,
    /// The queue pair, numbered from 0 in the process's order of creation.
    pub queue_pair: Option<u32>,
    /// The peer's address.
    pub peer: Option<IpAddr>,
    /// The direction of packets.
    pub direction: Option<Direction>,
    /// The message kinds.
    pub kinds: Kinds,
    /// The work queue of completions.
    pub queue: Option<Queues>,
    /// The kind of memory.
    pub memory: Option<Memory>,
    /// The first and last operation, from 0, inclusive.
    pub operations: (u64, u64),
    /// The proportion that is struck.
    pub(crate) share: Option<Share>,
    /// Strikes every n-th operation.
    pub(crate) every: Option<u64>,
    /// The maximum number of strikes per queue pair; per process for faults that strike no queue pair.
    pub most: Option<u64>,
    /// When a device fault strikes.
    pub trigger: Option<Trigger>,
    /// The key of its random numbers, derived from its text so that they do not depend on other rules.
    pub(crate) key: u64,
}

/// All operations.
const ALL_OPERATIONS: (u64, u64) = (0, u64::MAX);
/// The default limit on how long a packet waits to be overtaken, and a completion for its burst.
const WAIT: Duration = Duration::from_millis(1);
/// The default number of bytes that become visible at a time.
const PIECE: u32 = 64;

/// Parses `5`, `5..9` or `5..`.
fn operations(text: &str) -> Option<(u64, u64)> {
    let Some((from, to)) = text.split_once("..") else {
        let only = text.parse().ok()?;
        return Some((only, only));
    };
    let from = from.parse().ok()?;
    let to = match to {
        "" => u64::MAX,
        to => to.parse().ok()?,
    };
    (from <= to).then_some((from, to))
}

/// Returns the value with this name.
fn named<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str, text: &str) -> Option<T> {
    all.iter().copied().find(|value| name(*value) == text)
}

/// Returns the list of names in the form that [`Problem::Value`] uses.
fn one_of<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str) -> String {
    let names: Vec<_> = all.iter().map(|value| name(*value)).collect();
    format!("one of {}", names.join(", "))
}

impl Rule {
    /// Parses the keys of a fault.
    pub(crate) fn of(name: &'static str, mut fields: Fields) -> Result<Self, ScenarioError> {
        let fault = fault(name, &mut fields)?;
        let mut rule = Self {
            fault,
            queue_pair: None,
            peer: None,
            direction: None,
            kinds: Kinds::MESSAGES,
            queue: None,
            memory: None,
            operations: ALL_OPERATIONS,
            share: None,
            every: None,
            most: None,
            trigger: None,
            key: 0,
        };
        let class = fault.class();
        if class == Class::Device {
            rule.trigger = Some(trigger(name, &mut fields)?);
            return fields.finish(name).map(|()| rule);
        }
        if matches!(
            class,
            Class::Packet | Class::Completion | Class::Message | Class::Atomic
        ) {
            rule.queue_pair = fields.number("qp", 0)?;
        }
        if matches!(class, Class::Packet | Class::Message) {
            rule.peer = fields.get("peer", "an IP address", |text| text.parse().ok())?;
            let wanted = "kinds joined by +: send, write, read, atomic, datagram, ack";
            let kinds = fields.get("of", wanted, Kinds::parse)?;
            rule.kinds = kinds.unwrap_or(rule.kinds);
        }
        if class == Class::Packet {
            let (all, name) = (Direction::ALL, Direction::name);
            rule.direction = fields.get("dir", &one_of(all, name), |it| named(all, name, it))?;
        }
        if class == Class::Completion {
            let (all, name) = (Queues::ALL, Queues::name);
            rule.queue = fields.get("queue", &one_of(all, name), |it| named(all, name, it))?;
        }
        if class == Class::Registration {
            let (all, name) = (Memory::ALL, Memory::name);
            rule.memory = fields.get("memory", &one_of(all, name), |it| named(all, name, it))?;
        }
        let range = fields.get("op", "an operation, e.g. 5, 5..9 or 5..", operations)?;
        rule.operations = range.unwrap_or(ALL_OPERATIONS);
        let wanted = "a share above 0, e.g. 1%, 0.5% or 0.01";
        rule.share = fields.get("p", wanted, Share::parse)?;
        rule.every = fields.number("every", 1)?;
        rule.most = fields.number("max", 1)?;
        if rule.share.is_some() && rule.every.is_some() {
            return Err(fields.error("every", Problem::Excluded { other: "p" }));
        }
        fields.finish(name).map(|()| rule)
    }

    /// Returns whether it strikes at random rather than at places named by the scenario.
    pub const fn is_random(&self) -> bool {
        self.share.is_some()
    }
}

fn trigger(name: &'static str, fields: &mut Fields) -> Result<Trigger, ScenarioError> {
    let at = fields.duration("at")?.map(Trigger::At);
    let after = fields.size("after")?.map(Trigger::After);
    if at.is_some() && after.is_some() {
        return Err(fields.error("after", Problem::Excluded { other: "at" }));
    }
    fields.needed(at.or(after), name, "at", "at=100ms or after=1M")
}

/// Parses the keys specific to a fault.
fn fault(name: &'static str, fields: &mut Fields) -> Result<Fault, ScenarioError> {
    let by = |fields: &mut Fields| {
        let by = fields.duration("by")?;
        fields.needed(by, name, "by", "by=200us")
    };
    let lasting = |fields: &mut Fields| {
        let lasting = fields.duration("for")?;
        fields.needed(lasting, name, "for", "for=200ms")
    };
    let jitter = |fields: &mut Fields| fields.duration("jitter").map(Option::unwrap_or_default);
    let wait = |fields: &mut Fields| fields.duration("by").map(|by| by.unwrap_or(WAIT));
    Ok(match name {
        "drop" => Fault::Drop {
            times: fields.number("times", 1)?.unwrap_or(1),
        },
        "duplicate" => Fault::Duplicate {
            copies: fields.number("copies", 1)?.unwrap_or(1),
        },
        "corrupt" => {
            let (all, text) = (Icrc::ALL, Icrc::name);
            let icrc = fields.get("icrc", &one_of(all, text), |it| named(all, text, it))?;
            Fault::Corrupt {
                icrc: icrc.unwrap_or(Icrc::Wrong),
            }
        }
        "delay" => Fault::Delay {
            by: by(fields)?,
            jitter: jitter(fields)?,
        },
        "reorder" => Fault::Reorder {
            behind: fields.number("behind", 1)?.unwrap_or(1),
            by: wait(fields)?,
        },
        "rate" => {
            let limit = fields.size("limit")?;
            Fault::Rate {
                limit: fields.needed(limit, name, "limit", "limit=100M (bytes per second)")?,
            }
        }
        "link-down" => Fault::LinkDown {
            lasting: lasting(fields)?,
        },
        "gid-change" => Fault::GidChange {
            lasting: lasting(fields)?,
        },
        "device-fatal" => Fault::DeviceFatal,
        "kill" => Fault::Kill,
        "stop" => Fault::Stop {
            lasting: lasting(fields)?,
        },
        "hang" => Fault::Hang,
        "late" => Fault::Late {
            by: by(fields)?,
            jitter: jitter(fields)?,
        },
        "burst" => {
            let count = fields.number("count", 2)?;
            Fault::Burst {
                count: fields.needed(count, name, "count", "count=16")?,
                by: wait(fields)?,
            }
        }
        "status" => {
            let (all, text) = (StatusCode::ALL, StatusCode::name);
            let code = fields.get("code", &one_of(all, text), |it| named(all, text, it))?;
            Fault::Status {
                code: fields.needed(code, name, "code", "code=RETRY_EXC_ERR")?,
            }
        }
        "rnr" => Fault::ReceiverNotReady {
            times: fields.number("times", 1)?.unwrap_or(1),
        },
        "cq-room" => {
            let room = fields.number("room", 1)?;
            Fault::CqRoom {
                room: fields.needed(room, name, "room", "room=4")?,
            }
        }
        "refuse-registration" => {
            let (all, text) = (RefusedErrno::ALL, RefusedErrno::name);
            let errno = fields.get("errno", &one_of(all, text), |it| named(all, text, it))?;
            Fault::RefuseRegistration {
                errno: errno.unwrap_or(RefusedErrno::NoMemory),
            }
        }
        "slow-registration" => Fault::SlowRegistration { by: by(fields)? },
        "contend" => Fault::Contend,
        _ => {
            let (all, text) = (PlacementOrder::ALL, PlacementOrder::name);
            let order = fields.get("order", &one_of(all, text), |it| named(all, text, it))?;
            Fault::Place {
                order: fields.needed(order, name, "order", "order=reverse")?,
                piece: fields.number("piece", 1)?.unwrap_or(PIECE),
                by: fields.duration("by")?.unwrap_or(WAIT),
            }
        }
    })
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.fault.name())?;
        let time = |f: &mut fmt::Formatter<'_>, key: &str, value: Duration| {
            write!(f, " {key}={}", duration_text(value))
        };
        match self.fault {
            Fault::Drop { times } | Fault::ReceiverNotReady { times } => {
                write!(f, " times={times}")?;
            }
            Fault::Duplicate { copies } => write!(f, " copies={copies}")?,
            Fault::Delay { by, jitter } | Fault::Late { by, jitter } => {
                time(f, "by", by)?;
                time(f, "jitter", jitter)?;
            }
            Fault::Reorder { behind, by } => {
                write!(f, " behind={behind}")?;
                time(f, "by", by)?;
            }
            Fault::Rate { limit } => write!(f, " limit={}", size_text(limit))?,
            Fault::LinkDown { lasting }
            | Fault::GidChange { lasting }
            | Fault::Stop { lasting } => {
                time(f, "for", lasting)?;
            }
            Fault::Burst { count, by } => {
                write!(f, " count={count}")?;
                time(f, "by", by)?;
            }
            Fault::Status { code } => write!(f, " code={}", code.name())?,
            Fault::CqRoom { room } => write!(f, " room={room}")?,
            Fault::RefuseRegistration { errno } => write!(f, " errno={}", errno.name())?,
            Fault::SlowRegistration { by } => time(f, "by", by)?,
            Fault::Place { order, piece, by } => {
                write!(f, " order={} piece={piece}", order.name())?;
                time(f, "by", by)?;
            }
            Fault::Corrupt { icrc: Icrc::Mended } => f.write_str(" icrc=mended")?,
            Fault::Corrupt { icrc: Icrc::Wrong }
            | Fault::DeviceFatal
            | Fault::Kill
            | Fault::Hang
            | Fault::Contend => {}
        }
        match self.trigger {
            Some(Trigger::At(at)) => time(f, "at", at)?,
            Some(Trigger::After(bytes)) => write!(f, " after={}", size_text(bytes))?,
            None => {}
        }
        if let Some(direction) = self.direction {
            write!(f, " dir={}", direction.name())?;
        }
        if let Some(queue) = self.queue {
            write!(f, " queue={}", queue.name())?;
        }
        if let Some(memory) = self.memory {
            write!(f, " memory={}", memory.name())?;
        }
        if self.kinds != Kinds::MESSAGES {
            write!(f, " of={}", self.kinds)?;
        }
        if let Some(queue_pair) = self.queue_pair {
            write!(f, " qp={queue_pair}")?;
        }
        if let Some(peer) = self.peer {
            write!(f, " peer={peer}")?;
        }
        match self.operations {
            ALL_OPERATIONS => {}
            (from, u64::MAX) => write!(f, " op={from}..")?,
            (from, to) if from == to => write!(f, " op={from}")?,
            (from, to) => write!(f, " op={from}..{to}")?,
        }
        if let Some(share) = self.share {
            write!(f, " p={share}")?;
        }
        if let Some(every) = self.every {
            write!(f, " every={every}")?;
        }
        if let Some(most) = self.most {
            write!(f, " max={most}")?;
        }
        Ok(())
    }
}
