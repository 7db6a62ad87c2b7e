//! The messages. Field positions follow the tables of IBTA chapter 12.

use super::ServiceId;
use super::mad::{Mad, MadError};
use gdr_roce::Psn;
use gdr_roce::Reliability;
use gdr_roce::{PartitionKey, Qkey, Qpn};

/// A communication ID: one side's name for a connection; 0 if that side has none yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct CommId(pub u32);

/// Both communication IDs of a connection, as seen by the message's sender.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct IdPair {
    pub local: CommId,
    pub remote: CommId,
}

/// A connection's path as the active side proposes it. InfiniBand fields have the values of RoCE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Path {
    pub local_gid: [u8; 16],
    pub remote_gid: [u8; 16],
    /// 20 bits.
    pub flow_label: u32,
    pub traffic_class: u8,
    pub hop_limit: u8,
    /// A five-bit exponent, as in [`AckTimeout`](gdr_roce::AckTimeout).
    pub ack_timeout: u8,
}

/// REQ: requests a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Req {
    pub id: CommId,
    pub service: ServiceId,
    pub ca_guid: u64,
    pub qkey: Qkey,
    pub qpn: Qpn,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    /// How long the sender waits for a reply: a five-bit exponent.
    pub remote_response_timeout: u8,
    /// `None` for a transport service that this crate does not implement.
    pub reliability: Option<Reliability>,
    pub has_flow_control: bool,
    /// The first PSN of packets sent *to* the sender of this message.
    pub starting_psn: Psn,
    /// How long the sender takes to reply: a five-bit exponent.
    pub local_response_timeout: u8,
    /// Three bits.
    pub retry_count: u8,
    pub partition: PartitionKey,
    /// A value of `enum ibv_mtu`.
    pub path_mtu: u8,
    /// Three bits.
    pub rnr_retry_count: u8,
    /// Four bits.
    pub max_cm_retries: u8,
    pub has_shared_receives: bool,
    pub path: Path,
    pub private_data: [u8; Self::PRIVATE],
}

/// REP: accepts a REQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Rep {
    pub ids: IdPair,
    pub qkey: Qkey,
    pub qpn: Qpn,
    /// The queue pair of an extended connection, carried in the end-to-end context field.
    pub target_qpn: Qpn,
    /// The first PSN of packets sent *to* the sender of this message.
    pub starting_psn: Psn,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    /// A five-bit exponent.
    pub target_ack_delay: u8,
    pub has_flow_control: bool,
    /// Three bits.
    pub rnr_retry_count: u8,
    pub has_shared_receives: bool,
    pub ca_guid: u64,
    pub private_data: [u8; Self::PRIVATE],
}

/// The message that an MRA or REJ refers to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Rejected {
    Req,
    Rep,
    /// Any other value, including none.
    Other(u8),
}

impl Rejected {
    const fn code(self) -> u8 {
        match self {
            Self::Req => 0,
            Self::Rep => 1,
            Self::Other(code) => code,
        }
    }

    const fn of_code(code: u8) -> Self {
        match code {
            0 => Self::Req,
            1 => Self::Rep,
            other => Self::Other(other),
        }
    }
}

/// MRA: acknowledges a message whose reply will take longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Mra {
    pub ids: IdPair,
    pub message: Rejected,
    /// How long the reply takes at most: a five-bit exponent.
    pub service_timeout: u8,
    pub private_data: [u8; Self::PRIVATE],
}

/// Why a message was refused (IBTA 12.6.7.2). Peers may send any value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RejectReason(pub u16);

impl RejectReason {
    /// The sender of the REQ timed out.
    pub const TIMEOUT: Self = Self(4);
    /// No connection has this communication ID.
    pub const INVALID_COMM_ID: Self = Self(6);
    /// No program listens for the service.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// The queue pair is already connected, as far as the refusing side knows.
    pub const STALE_CONNECTION: Self = Self(10);
    /// The program refused it.
    pub const CONSUMER: Self = Self(28);
}

/// REJ: refuses a connection, or gives it up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Rej {
    pub ids: IdPair,
    pub message: Rejected,
    pub reason: RejectReason,
    /// The number of valid bytes in `info`: seven bits.
    pub info_len: u8,
    pub info: [u8; 72],
    pub private_data: [u8; Self::PRIVATE],
}

/// DREQ: disconnects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Dreq {
    pub ids: IdPair,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    pub private_data: [u8; Self::PRIVATE],
}

/// SIDR_REQ: resolves the queue pair of a datagram service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct SidrReq {
    pub id: CommId,
    pub partition: PartitionKey,
    pub service: ServiceId,
    pub private_data: [u8; Self::PRIVATE],
}

/// The outcome of a SIDR_REQ (IBTA 12.11.2.2). Peers may send any value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// The queue pair and its key are valid.
    pub const SUCCESS: Self = Self(0);
    /// No program listens for the service.
    pub const UNSUPPORTED: Self = Self(1);
    /// The program refused it.
    pub const REJECT: Self = Self(2);
}

/// SIDR_REP: the reply to a SIDR_REQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct SidrRep {
    pub id: CommId,
    pub status: SidrStatus,
    pub qpn: Qpn,
    pub service: ServiceId,
    pub qkey: Qkey,
    pub private_data: [u8; Self::PRIVATE],
}

impl Req {
    /// Private data length in bytes.
    pub const PRIVATE: usize = 92;
}
impl Rep {
    /// Private data length in bytes.
    pub const PRIVATE: usize = 196;
}
impl Mra {
    /// Private data length in bytes.
    pub const PRIVATE: usize = 222;
}
impl Rej {
    /// Private data length in bytes.
    pub const PRIVATE: usize = 148;
}
impl Dreq {
    /// Private data length in bytes.
    pub const PRIVATE: usize = 220;
}
impl SidrReq {
    /// Private data length in bytes.
    pub const PRIVATE: usize = 216;
}
impl SidrRep {
    /// Private data length in bytes.
    pub const PRIVATE: usize = 136;
}

/// A connection management message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
#[allow(
    clippy::large_enum_variant,
    reason = "all of them are the 256 bytes of a datagram"
)]
pub enum Message {
    Req(Req),
    Mra(Mra),
    Rej(Rej),
    Rep(Rep),
    /// Acknowledges a REP: ready to use.
    Rtu(IdPair),
    Dreq(Dreq),
    /// The reply to a DREQ.
    Drep(IdPair),
    SidrReq(SidrReq),
    SidrRep(SidrRep),
}

/// Attribute IDs (IBTA table 345).
const REQ: u16 = 0x10;
const MRA: u16 = 0x11;
const REJ: u16 = 0x12;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;
const DREP: u16 = 0x16;
const SIDR_REQ: u16 = 0x17;
const SIDR_REP: u16 = 0x18;

/// The REQ's transport service codes other than RC and UC, and the only defined extended one.
const DATAGRAM: u8 = 2;
const EXTENDED: u8 = 3;
const XRC: u8 = 1;

/// The LID of a path that is routed by GID.
const PERMISSIVE_LID: [u8; 2] = [0xff; 2];
/// 10 Gb/s in `enum ibv_rate`: a path needs some rate.
const RATE: u8 = 3;

impl Message {
    /// Parses an untrusted datagram. Fields that RoCE does not use are dropped.
    ///
    /// # Errors
    ///
    /// [`MadError::Attribute`].
    pub fn parse(mad: &Mad) -> Result<Self, MadError> {
        Ok(match mad.attribute() {
            REQ => Self::Req(parse_req(mad)),
            MRA => Self::Mra(Mra {
                ids: ids(mad),
                message: Rejected::of_code(mad.bits(8, 0, 2)),
                service_timeout: mad.bits(9, 0, 5),
                private_data: mad.bytes(10),
            }),
            REJ => Self::Rej(Rej {
                ids: ids(mad),
                message: Rejected::of_code(mad.bits(8, 0, 2)),
                info_len: mad.bits(9, 0, 7),
                reason: RejectReason(mad.u16(10)),
                info: mad.bytes(12),
                private_data: mad.bytes(84),
            }),
            REP => Self::Rep(Rep {
                ids: ids(mad),
                qkey: Qkey(mad.u32(8)),
                qpn: Qpn::new(mad.u24(12)),
                target_qpn: Qpn::new(mad.u24(16)),
                starting_psn: Psn::new(mad.u24(20)),
                responder_resources: mad.bits(24, 0, 8),
                initiator_depth: mad.bits(25, 0, 8),
                target_ack_delay: mad.bits(26, 0, 5),
                has_flow_control: mad.bits(26, 7, 1) == 1,
                rnr_retry_count: mad.bits(27, 0, 3),
                has_shared_receives: mad.bits(27, 3, 1) == 1,
                ca_guid: mad.u64(28),
                private_data: mad.bytes(36),
            }),
            RTU => Self::Rtu(ids(mad)),
            DREQ => Self::Dreq(Dreq {
                ids: ids(mad),
                remote_qpn: Qpn::new(mad.u24(8)),
                private_data: mad.bytes(12),
            }),
            DREP => Self::Drep(ids(mad)),
            SIDR_REQ => Self::SidrReq(SidrReq {
                id: CommId(mad.u32(0)),
                partition: PartitionKey(mad.u16(4)),
                service: ServiceId(mad.u64(8)),
                private_data: mad.bytes(16),
            }),
            SIDR_REP => Self::SidrRep(SidrRep {
                id: CommId(mad.u32(0)),
                status: SidrStatus(mad.bits(4, 0, 8)),
                qpn: Qpn::new(mad.u24(8)),
                service: ServiceId(mad.u64(12)),
                qkey: Qkey(mad.u32(20)),
                private_data: mad.bytes(96),
            }),
            other => return Err(MadError::Attribute(other)),
        })
    }

    /// Encodes the message as a datagram.
    pub fn emit(&self, transaction: u64) -> Mad {
        let new = |attribute| Mad::new(attribute, transaction);
        let of_pair = |attribute, ids: &IdPair| {
            let mut mad = new(attribute);
            mad.put(0, &ids.local.0.to_be_bytes());
            mad.put(4, &ids.remote.0.to_be_bytes());
            mad
        };
        match self {
            Self::Req(req) => emit_req(req, new(REQ)),
            Self::Mra(mra) => {
                let mut mad = of_pair(MRA, &mra.ids);
                mad.put_bits(8, 0, 2, mra.message.code());
                mad.put_bits(9, 0, 5, mra.service_timeout);
                mad.put(10, &mra.private_data);
                mad
            }
            Self::Rej(rej) => {
                let mut mad = of_pair(REJ, &rej.ids);
                mad.put_bits(8, 0, 2, rej.message.code());
                mad.put_bits(9, 0, 7, rej.info_len);
                mad.put(10, &rej.reason.0.to_be_bytes());
                mad.put(12, &rej.info);
                mad.put(84, &rej.private_data);
                mad
            }
            Self::Rep(rep) => {
                let mut mad = of_pair(REP, &rep.ids);
                mad.put(8, &rep.qkey.0.to_be_bytes());
                mad.put_u24(12, rep.qpn.get());
                mad.put_u24(16, rep.target_qpn.get());
                mad.put_u24(20, rep.starting_psn.get());
                mad.put(24, &[rep.responder_resources, rep.initiator_depth]);
                mad.put_bits(26, 0, 5, rep.target_ack_delay);
                mad.put_bits(26, 7, 1, rep.has_flow_control.into());
                mad.put_bits(27, 0, 3, rep.rnr_retry_count);
                mad.put_bits(27, 3, 1, rep.has_shared_receives.into());
                mad.put(28, &rep.ca_guid.to_be_bytes());
                mad.put(36, &rep.private_data);
                mad
            }
            Self::Rtu(ids) => of_pair(RTU, ids),
            Self::Dreq(dreq) => {
                let mut mad = of_pair(DREQ, &dreq.ids);
                mad.put_u24(8, dreq.remote_qpn.get());
                mad.put(12, &dreq.private_data);
                mad
            }
            Self::Drep(ids) => of_pair(DREP, ids),
            Self::SidrReq(req) => {
                let mut mad = new(SIDR_REQ);
                mad.put(0, &req.id.0.to_be_bytes());
                mad.put(4, &req.partition.0.to_be_bytes());
                mad.put(8, &req.service.0.to_be_bytes());
                mad.put(16, &req.private_data);
                mad
            }
            Self::SidrRep(rep) => {
                let mut mad = new(SIDR_REP);
                mad.put(0, &rep.id.0.to_be_bytes());
                mad.put(4, &[rep.status.0]);
                mad.put_u24(8, rep.qpn.get());
                mad.put(12, &rep.service.0.to_be_bytes());
                mad.put(20, &rep.qkey.0.to_be_bytes());
                mad.put(96, &rep.private_data);
                mad
            }
        }
    }

    /// Returns the addressee: the receiver's connection or exchange that the message names, the service that it
    /// requests, or the connection that an earlier request of its sender asked for.
    pub const fn addressee(&self) -> Addressee {
        match self {
            Self::Req(req) => Addressee::Service(req.service),
            Self::SidrReq(req) => Addressee::Service(req.service),
            Self::SidrRep(rep) => Addressee::Id(rep.id),
            Self::Rej(Rej { ids, .. }) if ids.remote.0 == 0 => Addressee::Request(ids.local),
            Self::Mra(Mra { ids, .. })
            | Self::Rej(Rej { ids, .. })
            | Self::Rep(Rep { ids, .. })
            | Self::Rtu(ids)
            | Self::Dreq(Dreq { ids, .. })
            | Self::Drep(ids) => Addressee::Id(ids.remote),
        }
    }
}

/// The addressee of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Addressee {
    Service(ServiceId),
    Id(CommId),
    Request(CommId),
}

fn ids(mad: &Mad) -> IdPair {
    IdPair {
        local: CommId(mad.u32(0)),
        remote: CommId(mad.u32(4)),
    }
}

fn parse_req(mad: &Mad) -> Req {
    Req {
        id: CommId(mad.u32(0)),
        service: ServiceId(mad.u64(8)),
        ca_guid: mad.u64(16),
        qkey: Qkey(mad.u32(28)),
        qpn: Qpn::new(mad.u24(32)),
        responder_resources: mad.bits(35, 0, 8),
        initiator_depth: mad.bits(39, 0, 8),
        remote_response_timeout: mad.bits(43, 0, 5),
        reliability: match mad.bits(43, 5, 2) {
            0 => Some(Reliability::Reliable),
            1 => Some(Reliability::Unreliable),
            EXTENDED if mad.bits(51, 5, 3) == XRC => Some(Reliability::Extended),
            _ => None,
        },
        has_flow_control: mad.bits(43, 7, 1) == 1,
        starting_psn: Psn::new(mad.u24(44)),
        local_response_timeout: mad.bits(47, 0, 5),
        retry_count: mad.bits(47, 5, 3),
        partition: PartitionKey(mad.u16(48)),
        path_mtu: mad.bits(50, 0, 4),
        rnr_retry_count: mad.bits(50, 5, 3),
        max_cm_retries: mad.bits(51, 0, 4),
        has_shared_receives: mad.bits(51, 4, 1) == 1,
        path: Path {
            local_gid: mad.bytes(56),
            remote_gid: mad.bytes(72),
            flow_label: mad.u32(88) >> 12,
            traffic_class: mad.bits(92, 0, 8),
            hop_limit: mad.bits(93, 0, 8),
            ack_timeout: mad.bits(95, 0, 5),
        },
        private_data: mad.bytes(140),
    }
}

fn emit_req(req: &Req, mut mad: Mad) -> Mad {
    mad.put(0, &req.id.0.to_be_bytes());
    mad.put(8, &req.service.0.to_be_bytes());
    mad.put(16, &req.ca_guid.to_be_bytes());
    mad.put(28, &req.qkey.0.to_be_bytes());
    mad.put_u24(32, req.qpn.get());
    mad.put(35, &[req.responder_resources]);
    mad.put(39, &[req.initiator_depth]);
    mad.put_bits(43, 0, 5, req.remote_response_timeout);
    let transport = match req.reliability {
        Some(Reliability::Reliable) => 0,
        Some(Reliability::Unreliable) => 1,
        Some(Reliability::Extended) => EXTENDED,
        None => DATAGRAM,
    };
    mad.put_bits(43, 5, 2, transport);
    mad.put_bits(43, 7, 1, req.has_flow_control.into());
    mad.put_u24(44, req.starting_psn.get());
    mad.put_bits(47, 0, 5, req.local_response_timeout);
    mad.put_bits(47, 5, 3, req.retry_count);
    mad.put(48, &req.partition.0.to_be_bytes());
    mad.put_bits(50, 0, 4, req.path_mtu);
    mad.put_bits(50, 5, 3, req.rnr_retry_count);
    mad.put_bits(51, 0, 4, req.max_cm_retries);
    mad.put_bits(51, 4, 1, req.has_shared_receives.into());
    if transport == EXTENDED {
        mad.put_bits(51, 5, 3, XRC);
    }
    mad.put(52, &PERMISSIVE_LID);
    mad.put(54, &PERMISSIVE_LID);
    mad.put(56, &req.path.local_gid);
    mad.put(72, &req.path.remote_gid);
    mad.put(88, &(req.path.flow_label << 12).to_be_bytes());
    mad.put_bits(91, 2, 6, RATE);
    mad.put(92, &[req.path.traffic_class, req.path.hop_limit]);
    mad.put_bits(95, 0, 5, req.path.ack_timeout);
    mad.put(140, &req.private_data);
    mad
}

impl SidrRep {
    /// Returns a refusal.
    pub fn refusal(status: SidrStatus) -> Self {
        Self {
            id: CommId::default(),
            status,
            qpn: Qpn::default(),
            service: ServiceId::default(),
            qkey: Qkey::default(),
            private_data: [0; Self::PRIVATE],
        }
    }

    /// Returns the reply for a service on which no program listens.
    pub(super) fn unsupported(req: &SidrReq) -> Self {
        Self {
            id: req.id,
            service: req.service,
            ..Self::refusal(SidrStatus::UNSUPPORTED)
        }
    }
}

impl Rej {
    /// Returns a refusal without private data.
    pub(super) fn plain(ids: IdPair, message: Rejected, reason: RejectReason) -> Self {
        Self {
            ids,
            message,
            reason,
            info_len: 0,
            info: [0; 72],
            private_data: [0; Self::PRIVATE],
        }
    }

    /// Returns the REJ that abandons a REQ which has no reply yet. The peer's ID is unknown, so the peer finds the
    /// connection by the sender's device.
    pub(super) fn giving_up(ids: IdPair, ca_guid: u64) -> Self {
        let guid = ca_guid.to_be_bytes();
        let mut rej = Self::plain(ids, Rejected::Other(2), RejectReason::TIMEOUT);
        rej.info[..guid.len()].copy_from_slice(&guid);
        Self {
            info_len: guid.len() as u8,
            ..rej
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAD_LEN;
    use proptest::prelude::*;

    /// Returns a datagram with these bytes after its header.
    fn mad(attribute: u16, data: &[u8]) -> Mad {
        let mut mad = Mad::new(attribute, 0x55);
        mad.put(0, data);
        mad
    }

    #[test]
    fn a_request_has_the_bytes_of_the_table() {
        let mut bytes = vec![0; MAD_LEN - 24];
        bytes[..4].copy_from_slice(&[0, 0, 0, 9]);
        bytes[8..16].copy_from_slice(&[0, 0, 0, 0, 1, 6, 0x1c, 6]);
        bytes[16..24].copy_from_slice(&[2, 0, 0, 0, 0, 0, 0, 1]);
        bytes[32..36].copy_from_slice(&[0x12, 0x34, 0x56, 3]);
        bytes[36..40].copy_from_slice(&[0, 0, 0, 4]);
        bytes[43] = 20 << 3 | 1;
        bytes[44..48].copy_from_slice(&[0xab, 0xcd, 0xef, 20 << 3 | 7]);
        bytes[48..52].copy_from_slice(&[0xff, 0xff, 3 << 4 | 6, 15 << 4 | 8]);
        bytes[95] = 18 << 3;
        bytes[140] = 0x40;
        let Ok(Message::Req(req)) = Message::parse(&mad(REQ, &bytes)) else {
            panic!("not a REQ");
        };
        assert_eq!(
            (req.id, req.service),
            (CommId(9), ServiceId::of_port(0x106, 7174))
        );
        assert_eq!(
            (req.qpn, req.starting_psn),
            (Qpn::new(0x12_3456), Psn::new(0xab_cdef))
        );
        assert_eq!((req.responder_resources, req.initiator_depth), (3, 4));
        assert_eq!(
            (req.remote_response_timeout, req.local_response_timeout),
            (20, 20)
        );
        assert_eq!(
            (req.retry_count, req.rnr_retry_count, req.max_cm_retries),
            (7, 6, 15)
        );
        assert_eq!((req.path_mtu, req.path.ack_timeout), (3, 18));
        assert!(req.has_flow_control && req.has_shared_receives);
        assert_eq!(req.reliability, Some(Reliability::Reliable));
        assert_eq!(req.private_data[0], 0x40);
    }

    #[test]
    fn an_extended_service_has_a_code_and_a_type() {
        let mut bytes = vec![0; MAD_LEN - 24];
        let mut service = |byte43, byte51| {
            (bytes[43], bytes[51]) = (byte43, byte51);
            match Message::parse(&mad(REQ, &bytes)) {
                Ok(Message::Req(req)) => req.reliability,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(service(3 << 1, 1), Some(Reliability::Extended));
        assert_eq!(service(3 << 1, 2), None);
        assert_eq!(service(1 << 1, 1), Some(Reliability::Unreliable));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        /// Whatever parses can be encoded and parsed again, for any bytes.
        #[test]
        fn any_datagram_gives_a_message_or_an_error(
            attribute in 0x0e_u16..0x1c, data in proptest::collection::vec(any::<u8>(), MAD_LEN - 24),
        ) {
            let mad = mad(attribute, &data);
            match Message::parse(&mad) {
                Ok(message) => {
                    let again = message.emit(mad.transaction());
                    prop_assert_eq!(Message::parse(&again), Ok(message));
                    prop_assert_eq!(Mad::of(again.as_bytes()), Ok(again));
                    prop_assert_eq!(again.attribute(), attribute);
                    prop_assert_eq!(again.transaction(), 0x55);
                }
                Err(error) => {
                    prop_assert_eq!(error, MadError::Attribute(attribute));
                    prop_assert!(!(REQ..=SIDR_REP).contains(&attribute));
                }
            }
        }

        /// Only reserved bits and InfiniBand-only fields are lost.
        #[test]
        fn messages_between_two_names_keep_every_byte(
            attribute in proptest::sample::select(vec![MRA, REJ, DREQ]),
            mut data in proptest::collection::vec(any::<u8>(), MAD_LEN - 24),
        ) {
            match attribute {
                DREQ => data[11] = 0,
                _ => {
                    data[8] &= 0xc0;
                    data[9] &= if attribute == MRA { 0xf8 } else { 0xfe };
                }
            }
            let mad = mad(attribute, &data);
            let message = Message::parse(&mad).unwrap();
            prop_assert_eq!(message.emit(0x55), mad);
        }
    }
}
