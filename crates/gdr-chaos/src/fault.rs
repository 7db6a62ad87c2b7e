//! What can go wrong.

use std::fmt;
use std::time::Duration;

/// What a fault strikes, which decides the keys that select it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Packets of queue pairs.
    Packet,
    /// The whole device, or its process, once.
    Device,
    /// Completions.
    Completion,
    /// Messages that arrive.
    Message,
    /// Completion queues when they are made.
    CompletionQueue,
    /// Registrations of memory.
    Registration,
    /// Atomic operations at their target.
    Atomic,
}

/// In which order bytes become visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementOrder {
    /// The last byte first.
    Reverse,
    /// In an order that the seed chooses.
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

            /// Its name.
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
    /// Why a registration is refused.
    RefusedErrno:
    /// No memory can be locked.
    NoMemory = "ENOMEM",
    /// The arguments, or the dma-buf, are refused.
    Invalid = "EINVAL",
    /// The kernel cannot do that.
    Unsupported = "EOPNOTSUPP",
    /// The rights are refused.
    Permission = "EPERM",
}

names! {
    /// What the check sum of a changed packet is.
    Icrc:
    /// The one of the bytes before, so that the receiver drops the packet.
    Wrong = "wrong",
    /// The one of the changed bytes: nothing but a comparison of the message finds it.
    Mended = "mended",
}

impl PlacementOrder {
    pub(crate) const ALL: &[Self] = &[Self::Reverse, Self::Shuffle, Self::Late];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reverse => "reverse",
            Self::Shuffle => "shuffle",
            Self::Late => "late",
        }
    }
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A packet is lost this many times before it arrives.
    Drop {
        /// How often.
        times: u32,
    },
    /// A packet arrives more than once.
    Duplicate {
        /// How many more times.
        copies: u32,
    },
    /// A bit of a packet is changed: with a check sum that is mended, one of its payload.
    Corrupt {
        /// The check sum.
        icrc: Icrc,
    },
    /// A packet, and all after it, comes later.
    Delay {
        /// By how much.
        by: Duration,
        /// By how much more at most, chosen by the seed.
        jitter: Duration,
    },
    /// A packet is overtaken.
    Reorder {
        /// By this many packets of its queue pair.
        behind: u32,
        /// The wait ends after this time.
        by: Duration,
    },
    /// Packets leave at no more than this rate.
    Rate {
        /// Bytes per second.
        limit: u64,
    },
    /// The port is down: packets are lost, and `PORT_ERR` and later `PORT_ACTIVE` are raised.
    LinkDown {
        /// For how long.
        lasting: Duration,
    },
    /// The address is gone for a while: `GID_CHANGE` is raised twice, and packets are lost meanwhile.
    GidChange {
        /// For how long.
        lasting: Duration,
    },
    /// The device fails: `DEVICE_FATAL`, and every queue pair is in ERR.
    DeviceFatal,
    /// The process is killed (`SIGKILL`).
    Kill,
    /// The process is stopped (`SIGSTOP`), and continued.
    Stop {
        /// For how long.
        lasting: Duration,
    },
    /// The completion never comes, nor any after it, until the queue pair is in ERR.
    Hang,
    /// The completion comes late.
    Late {
        /// By how much.
        by: Duration,
        /// By how much more at most, chosen by the seed.
        jitter: Duration,
    },
    /// Completions come in bursts.
    Burst {
        /// This many in each.
        count: u32,
        /// The first one waits no longer than this.
        by: Duration,
    },
    /// The completion has this status, and the queue pair is in ERR.
    Status {
        /// The status.
        code: StatusCode,
    },
    /// A message that arrives finds no receive this many times (RNR NAK).
    ReceiverNotReady {
        /// How often.
        times: u32,
    },
    /// A completion queue has fewer entries than it was made with.
    CqRoom {
        /// How many.
        room: u32,
    },
    /// A registration is refused.
    RefuseRegistration {
        /// Why.
        errno: RefusedErrno,
    },
    /// A registration takes long.
    SlowRegistration {
        /// How long.
        by: Duration,
    },
    /// A compare-and-swap finds a value that another party had put there for a moment.
    Contend,
    /// The bytes of a message become visible late and in an unusual order, and all before it is acknowledged or
    /// completed.
    Place {
        /// In which order.
        order: PlacementOrder,
        /// How many bytes at a time.
        piece: u32,
        /// For how long a part of the bytes is visible.
        by: Duration,
    },
}

impl Fault {
    /// The names of all.
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

    /// Its name in a scenario.
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

    /// What it strikes.
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
