//! Faults that can be injected.

use std::fmt;
use std::time::Duration;

/// The target of a fault, which determines the keys that select it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Packets of queue pairs.
    Packet,
    /// The whole device or its process, once.
    Device,
    /// Completions.
    Completion,
    /// Received messages.
    Message,
    /// Completion queues, at creation.
    CompletionQueue,
    /// Memory registrations.
    Registration,
    /// Atomic operations at their target.
    Atomic,
}

/// The order in which bytes become visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementOrder {
    /// Last byte first.
    Reverse,
    /// In an order derived from the seed.
    Shuffle,
    /// All at the end.
    Late,
}

macro_rules! names {
    ($(#[$meta:meta])* $name:ident: $($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)?) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),+];

            /// Returns its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }
    };
}

names! {
    /// The status of a completion, by the name in `enum ibv_wc_status` without `IBV_WC_`.
    StatusCode:
    /// `LOC_LEN_ERR`
    LocalLength = "LOC_LEN_ERR",
    /// `LOC_QP_OP_ERR`
    LocalOperation = "LOC_QP_OP_ERR",
    /// `LOC_PROT_ERR`
    LocalProtection = "LOC_PROT_ERR",
    /// `WR_FLUSH_ERR`
    Flushed = "WR_FLUSH_ERR",
    /// `BAD_RESP_ERR`
    BadResponse = "BAD_RESP_ERR",
    /// `REM_INV_REQ_ERR`
    RemoteInvalidRequest = "REM_INV_REQ_ERR",
    /// `REM_ACCESS_ERR`
    RemoteAccess = "REM_ACCESS_ERR",
    /// `REM_OP_ERR`
    RemoteOperation = "REM_OP_ERR",
    /// `RETRY_EXC_ERR`
    RetryExceeded = "RETRY_EXC_ERR",
    /// `RNR_RETRY_EXC_ERR`
    RnrRetryExceeded = "RNR_RETRY_EXC_ERR",
}

names! {
    /// The error with which a registration is refused.
    RefusedErrno:
    /// Memory cannot be locked.
    NoMemory = "ENOMEM",
    /// The arguments or the dma-buf are refused.
    Invalid = "EINVAL",
    /// The kernel does not support it.
    Unsupported = "EOPNOTSUPP",
    /// The access rights are refused.
    Permission = "EPERM",
}

names! {
    /// The ICRC of a corrupted packet.
    Icrc:
    /// The original one, so that the receiver drops the packet.
    Wrong = "wrong",
    /// Recomputed, so that only a comparison of the message detects the change.
    Mended = "mended",
}

impl PlacementOrder {
    pub(crate) const ALL: &[Self] = &[Self::Reverse, Self::Shuffle, Self::Late];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reverse => "reverse",
            Self::Shuffle => "shuffle",
            Self::Late => "late",
        }
    }
}

/// An injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A packet is lost this many times before it arrives.
    Drop {
        /// The number of times.
        times: u32,
    },
    /// A packet arrives more than once.
    Duplicate {
        /// The number of additional copies.
        copies: u32,
    },
    /// A bit of a packet is flipped; if the ICRC is recomputed, a bit of the payload.
    Corrupt {
        /// The ICRC.
        icrc: Icrc,
    },
    /// A packet and everything after it is delayed.
    Delay {
        /// The delay.
        by: Duration,
        /// The maximum additional delay, derived from the seed.
        jitter: Duration,
    },
    /// A packet is overtaken.
    Reorder {
        /// The number of packets of its queue pair that overtake it.
        behind: u32,
        /// The longest it is held back.
        by: Duration,
    },
    /// Packets are sent at no more than this rate.
    Rate {
        /// Bytes per second.
        limit: u64,
    },
    /// The port is down: packets are lost, and `PORT_ERR` and later `PORT_ACTIVE` are raised.
    LinkDown {
        /// The duration.
        lasting: Duration,
    },
    /// The address disappears for a while: `GID_CHANGE` is raised twice, and packets are lost in between.
    GidChange {
        /// The duration.
        lasting: Duration,
    },
    /// The device fails: `DEVICE_FATAL` is raised, and every queue pair enters ERR.
    DeviceFatal,
    /// The process is killed (`SIGKILL`).
    Kill,
    /// The process is stopped (`SIGSTOP`), and later continued.
    Stop {
        /// The duration.
        lasting: Duration,
    },
    /// The completion and all later ones are withheld until the queue pair enters ERR.
    Hang,
    /// The completion is late.
    Late {
        /// The delay.
        by: Duration,
        /// The maximum additional delay, derived from the seed.
        jitter: Duration,
    },
    /// Completions are delivered in bursts.
    Burst {
        /// The number of completions per burst.
        count: u32,
        /// The longest that the first one is held back.
        by: Duration,
    },
    /// The completion gets this status, and the queue pair enters ERR.
    Status {
        /// The status.
        code: StatusCode,
    },
    /// A received message finds no receive posted this many times (RNR NAK).
    ReceiverNotReady {
        /// The number of times.
        times: u32,
    },
    /// A completion queue has fewer entries than requested.
    CqRoom {
        /// The number of entries.
        room: u32,
    },
    /// A registration is refused.
    RefuseRegistration {
        /// The error.
        errno: RefusedErrno,
    },
    /// A registration is slow.
    SlowRegistration {
        /// The delay.
        by: Duration,
    },
    /// A compare-and-swap finds a value that another party had stored for a moment.
    Contend,
    /// The bytes of a message become visible late and in an unusual order, but before it is acknowledged or completed.
    Place {
        /// The order.
        order: PlacementOrder,
        /// The number of bytes at a time.
        piece: u32,
        /// How long only part of the bytes is visible.
        by: Duration,
    },
}

impl Fault {
    /// The names of all faults.
    pub const NAMES: &[&str] = &[
        "drop",
        "duplicate",
        "corrupt",
        "delay",
        "reorder",
        "rate",
        "link-down",
        "gid-change",
        "device-fatal",
        "kill",
        "stop",
        "hang",
        "late",
        "burst",
        "status",
        "rnr",
        "cq-room",
        "refuse-registration",
        "slow-registration",
        "contend",
        "place",
    ];

    /// Returns its name in a scenario.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Drop { .. } => "drop",
            Self::Duplicate { .. } => "duplicate",
            Self::Corrupt { .. } => "corrupt",
            Self::Delay { .. } => "delay",
            Self::Reorder { .. } => "reorder",
            Self::Rate { .. } => "rate",
            Self::LinkDown { .. } => "link-down",
            Self::GidChange { .. } => "gid-change",
            Self::DeviceFatal => "device-fatal",
            Self::Kill => "kill",
            Self::Stop { .. } => "stop",
            Self::Hang => "hang",
            Self::Late { .. } => "late",
            Self::Burst { .. } => "burst",
            Self::Status { .. } => "status",
            Self::ReceiverNotReady { .. } => "rnr",
            Self::CqRoom { .. } => "cq-room",
            Self::RefuseRegistration { .. } => "refuse-registration",
            Self::SlowRegistration { .. } => "slow-registration",
            Self::Contend => "contend",
            Self::Place { .. } => "place",
        }
    }

    /// Returns the kind of target.
    pub const fn class(&self) -> Class {
        match self {
            Self::Drop { .. }
            | Self::Duplicate { .. }
            | Self::Corrupt { .. }
            | Self::Delay { .. }
            | Self::Reorder { .. }
            | Self::Rate { .. } => Class::Packet,
            Self::LinkDown { .. }
            | Self::GidChange { .. }
            | Self::DeviceFatal
            | Self::Kill
            | Self::Stop { .. } => Class::Device,
            Self::Hang | Self::Late { .. } | Self::Burst { .. } | Self::Status { .. } => {
                Class::Completion
            }
            Self::ReceiverNotReady { .. } | Self::Place { .. } => Class::Message,
            Self::CqRoom { .. } => Class::CompletionQueue,
            Self::RefuseRegistration { .. } | Self::SlowRegistration { .. } => Class::Registration,
            Self::Contend => Class::Atomic,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
