//! State changes of queue pairs.

use crate::bindings::{ibv_qp_attr_mask as Mask, ibv_qp_state as State, ibv_qp_type as Type};

/// Attributes that `ibv_modify_qp` requires and accepts for a state change of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpTransition {
    required: Mask,
    optional: Mask,
}

/// Attributes of the alternate path of a connection, which only InfiniBand has.
const MIGRATION: Mask = Mask::IBV_QP_ALT_PATH.union(Mask::IBV_QP_PATH_MIG_STATE);
/// What a connection permits its peer.
const ACCESS: Mask = Mask::IBV_QP_ACCESS_FLAGS.union(Mask::IBV_QP_PKEY_INDEX);

impl QpTransition {
    /// Returns the change from one state to another, or to the same one, of a queue pair of type RC, UC, UD, XRC or raw
    /// packet; `None` if there is no such change. As in the kernel (`qp_state_table` in
    /// drivers/infiniband/core/verbs.c), which follows IBTA 10.3.1 and 11.2.5.2.
    pub fn new(kind: Type, from: State, to: State) -> Option<Self> {
        let (required, optional) = match (from, to) {
            (State::IBV_QPS_RESET, State::IBV_QPS_ERR) => return None,
            (_, State::IBV_QPS_RESET | State::IBV_QPS_ERR) => (Mask::NONE, Mask::NONE),
            (State::IBV_QPS_RESET, State::IBV_QPS_INIT) => (of_init(kind), Mask::NONE),
            (State::IBV_QPS_INIT, State::IBV_QPS_INIT) => (Mask::NONE, of_init(kind)),
            (State::IBV_QPS_INIT, State::IBV_QPS_RTR) => of_rtr(kind),
            (State::IBV_QPS_RTR, State::IBV_QPS_RTS) => of_rts(kind),
            (State::IBV_QPS_RTS | State::IBV_QPS_SQD, State::IBV_QPS_RTS) => {
                (Mask::NONE, while_sending(kind))
            }
            // A reliable connection has no SQE state: errors end it.
            (State::IBV_QPS_SQE, State::IBV_QPS_RTS) => match kind {
                Type::IBV_QPT_UD => (Mask::NONE, while_sending(kind)),
                Type::IBV_QPT_UC => {
                    let optional = Mask::IBV_QP_CUR_STATE | Mask::IBV_QP_ACCESS_FLAGS;
                    (Mask::NONE, optional)
                }
                _ => return None,
            },
            (State::IBV_QPS_RTS, State::IBV_QPS_SQD) => {
                (Mask::NONE, Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY)
            }
            (State::IBV_QPS_SQD, State::IBV_QPS_SQD) => (Mask::NONE, while_drained(kind)),
            _ => return None,
        };
        Some(Self { required, optional })
    }

    /// Returns whether `ibv_modify_qp` takes these attributes, which may include `IBV_QP_STATE`.
    pub fn permits(&self, given: Mask) -> bool {
        let known = self.required | self.optional | Mask::IBV_QP_STATE;
        given.contains(self.required) && known.contains(given)
    }
}

fn of_init(kind: Type) -> Mask {
    Mask::IBV_QP_PORT
        | match kind {
            Type::IBV_QPT_UD => Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_QKEY,
            Type::IBV_QPT_RAW_PACKET => Mask::NONE,
            _ => ACCESS,
        }
}

fn of_rtr(kind: Type) -> (Mask, Mask) {
    let path =
        Mask::IBV_QP_AV | Mask::IBV_QP_PATH_MTU | Mask::IBV_QP_DEST_QPN | Mask::IBV_QP_RQ_PSN;
    let optional = Mask::IBV_QP_ALT_PATH | ACCESS;
    match kind {
        Type::IBV_QPT_UD => (Mask::NONE, Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_QKEY),
        Type::IBV_QPT_RAW_PACKET => (Mask::NONE, Mask::NONE),
        Type::IBV_QPT_UC | Type::IBV_QPT_XRC_SEND => (path, optional),
        _ => {
            let reads = Mask::IBV_QP_MAX_DEST_RD_ATOMIC | Mask::IBV_QP_MIN_RNR_TIMER;
            (path | reads, optional)
        }
    }
}

fn of_rts(kind: Type) -> (Mask, Mask) {
    let required = match kind {
        Type::IBV_QPT_RAW_PACKET => Mask::NONE,
        Type::IBV_QPT_UD | Type::IBV_QPT_UC => Mask::IBV_QP_SQ_PSN,
        Type::IBV_QPT_XRC_RECV => Mask::IBV_QP_SQ_PSN | Mask::IBV_QP_TIMEOUT,
        _ => Mask::IBV_QP_SQ_PSN | of_retries(),
    };
    (required, while_sending(kind))
}

fn of_retries() -> Mask {
    Mask::IBV_QP_TIMEOUT
        | Mask::IBV_QP_RETRY_CNT
        | Mask::IBV_QP_RNR_RETRY
        | Mask::IBV_QP_MAX_QP_RD_ATOMIC
}

fn while_sending(kind: Type) -> Mask {
    let connection = Mask::IBV_QP_CUR_STATE | Mask::IBV_QP_ACCESS_FLAGS | MIGRATION;
    match kind {
        Type::IBV_QPT_RAW_PACKET => Mask::IBV_QP_CUR_STATE,
        Type::IBV_QPT_UD => Mask::IBV_QP_CUR_STATE | Mask::IBV_QP_QKEY,
        Type::IBV_QPT_UC | Type::IBV_QPT_XRC_SEND => connection,
        _ => connection | Mask::IBV_QP_MIN_RNR_TIMER,
    }
}

fn while_drained(kind: Type) -> Mask {
    let connection = Mask::IBV_QP_AV | MIGRATION | ACCESS;
    match kind {
        Type::IBV_QPT_RAW_PACKET => Mask::NONE,
        Type::IBV_QPT_UD => Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_QKEY,
        Type::IBV_QPT_UC => connection,
        _ => {
            let responder = Mask::IBV_QP_MAX_DEST_RD_ATOMIC | Mask::IBV_QP_MIN_RNR_TIMER;
            connection | Mask::IBV_QP_PORT | of_retries() | responder
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 7] = [
        State::IBV_QPS_RESET,
        State::IBV_QPS_INIT,
        State::IBV_QPS_RTR,
        State::IBV_QPS_RTS,
        State::IBV_QPS_SQD,
        State::IBV_QPS_SQE,
        State::IBV_QPS_ERR,
    ];

    fn changes(kind: Type) -> Vec<String> {
        let name = |state: State| state.name().unwrap_or_default().replace("IBV_QPS_", "");
        let mut found = Vec::new();
        for from in STATES {
            let to = STATES.into_iter();
            let to = to.filter(|to| QpTransition::new(kind, from, *to).is_some());
            let to: Vec<_> = to.map(name).collect();
            found.push(format!("{}: {}", name(from), to.join(" ")));
        }
        found
    }

    #[test]
    fn the_states_of_datagrams_and_unreliable_connections_follow_each_other_as_in_the_kernel() {
        let expected = [
            "RESET: RESET INIT",
            "INIT: RESET INIT RTR ERR",
            "RTR: RESET RTS ERR",
            "RTS: RESET RTS SQD ERR",
            "SQD: RESET RTS SQD ERR",
            "SQE: RESET RTS ERR",
            "ERR: RESET ERR",
        ];
        assert_eq!(changes(Type::IBV_QPT_UD), expected);
        assert_eq!(changes(Type::IBV_QPT_UC), expected);
    }

    #[test]
    fn a_reliable_connection_does_not_return_from_an_error_of_its_send_queue() {
        let changes = changes(Type::IBV_QPT_RC);
        assert_eq!(changes[5], "SQE: RESET ERR");
    }

    #[test]
    fn raw_packets_need_their_port_and_nothing_else() {
        let (reset, init) = (State::IBV_QPS_RESET, State::IBV_QPS_INIT);
        let (rtr, rts) = (State::IBV_QPS_RTR, State::IBV_QPS_RTS);
        let permits = |from, to, given| {
            let change = QpTransition::new(Type::IBV_QPT_RAW_PACKET, from, to).unwrap();
            change.permits(Mask::IBV_QP_STATE | given)
        };
        assert!(!permits(reset, init, Mask::NONE));
        assert!(permits(reset, init, Mask::IBV_QP_PORT));
        assert!(!permits(reset, init, Mask::IBV_QP_PORT | Mask::IBV_QP_QKEY));
        assert!(permits(init, rtr, Mask::NONE) && !permits(init, rtr, Mask::IBV_QP_QKEY));
        assert!(permits(rtr, rts, Mask::NONE) && !permits(rtr, rts, Mask::IBV_QP_SQ_PSN));
    }

    #[test]
    fn required_attributes_must_be_given_and_only_known_ones_may_be() {
        let (init, rtr) = (State::IBV_QPS_INIT, State::IBV_QPS_RTR);
        let path = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN;
        let reliable = QpTransition::new(Type::IBV_QPT_RC, init, rtr).unwrap();
        assert!(!reliable.permits(path));
        let reads = Mask::IBV_QP_MAX_DEST_RD_ATOMIC | Mask::IBV_QP_MIN_RNR_TIMER;
        assert!(reliable.permits(path | reads));
        assert!(reliable.permits(path | reads | Mask::IBV_QP_ACCESS_FLAGS));
        assert!(!reliable.permits(path | reads | Mask::IBV_QP_QKEY));
        let unreliable = QpTransition::new(Type::IBV_QPT_UC, init, rtr).unwrap();
        assert!(unreliable.permits(path));
        assert!(!unreliable.permits(path | reads));
    }
}
