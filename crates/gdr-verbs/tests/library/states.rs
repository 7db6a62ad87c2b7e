//! The states of queue pairs, changed by `ibv_modify_qp` and read by `ibv_query_qp`.

use gdr_verbs_sys::ibv_qp_attr_mask as Mask;
use gdr_verbs_sys::ibv_qp_state as State;
use gdr_verbs_sys::ibv_qp_type as Type;
use gdr_verbs_sys::*;
use proptest::prelude::*;

use crate::side::*;

const STATES: [State; 7] = [
    State::IBV_QPS_RESET,
    State::IBV_QPS_INIT,
    State::IBV_QPS_RTR,
    State::IBV_QPS_RTS,
    State::IBV_QPS_SQD,
    State::IBV_QPS_SQE,
    State::IBV_QPS_ERR,
];

#[test]
fn a_query_returns_the_state_and_what_was_set() {
    for kind in [Type::IBV_QPT_RC, Type::IBV_QPT_UC, Type::IBV_QPT_UD] {
        let side = Side::new(kind);
        assert_eq!(side.state(), State::IBV_QPS_RESET);
        side.to_init().unwrap();
        let (attr, made) = side.query();
        assert_eq!(
            (attr.qp_state, attr.cur_qp_state),
            (State::IBV_QPS_INIT, State::IBV_QPS_INIT)
        );
        assert_eq!((attr.port_num, made.qp_type), (1, kind));
        match kind {
            Type::IBV_QPT_UD => assert_eq!(attr.qkey, QKEY),
            _ => assert_eq!(attr.qp_access_flags, all_access().0),
        }
        side.to_rtr(side.number()).unwrap();
        let (attr, _) = side.query();
        assert_eq!(attr.qp_state, State::IBV_QPS_RTR);
        if kind != Type::IBV_QPT_UD {
            let set = (attr.dest_qp_num, attr.rq_psn, attr.path_mtu);
            assert_eq!(set, (side.number(), 7, ibv_mtu::IBV_MTU_1024));
        }
        side.to_rts().unwrap();
        let (attr, _) = side.query();
        assert_eq!((attr.qp_state, attr.sq_psn), (State::IBV_QPS_RTS, 7));
        let of_reads = match kind {
            Type::IBV_QPT_RC => (16, 16, 12, 16),
            _ => (0, 0, 0, 0),
        };
        let set = (
            attr.max_rd_atomic,
            attr.max_dest_rd_atomic,
            attr.min_rnr_timer,
            attr.timeout,
        );
        assert_eq!(set, of_reads);
        side.to_state(State::IBV_QPS_SQD).unwrap();
        let (attr, _) = side.query();
        assert_eq!((attr.qp_state, attr.sq_draining), (State::IBV_QPS_SQD, 0));
        side.to_error().unwrap();
        assert_eq!(side.state(), State::IBV_QPS_ERR);
        side.to_state(State::IBV_QPS_RESET).unwrap();
        let (attr, _) = side.query();
        assert_eq!((attr.qp_state, attr.sq_psn), (State::IBV_QPS_RESET, 0));
        side.close();
    }
}

#[test]
fn requests_wait_in_sqd_and_the_event_comes_if_it_was_asked_for() {
    let (a, b) = sides();
    let (mut near, mut far) = (vec![7; 8], vec![0; 8]);
    let (source, target) = (a.register(&mut near), b.register(&mut far));
    let mut attr = ibv_qp_attr {
        qp_state: State::IBV_QPS_SQD,
        en_sqd_async_notify: 1,
        ..Default::default()
    };
    // SAFETY: the context is open.
    unsafe {
        let flags = libc::fcntl((*a.context).async_fd, libc::F_GETFL);
        libc::fcntl(
            (*a.context).async_fd,
            libc::F_SETFL,
            flags | libc::O_NONBLOCK,
        );
    }
    // An idle queue pair is already drained when the call returns.
    let next_event = || {
        let mut event = ibv_async_event::default();
        // SAFETY: the context is open, and each event is acknowledged once.
        unsafe {
            let taken = library().ibv_get_async_event(a.context, &mut event);
            taken.map_err(|error| error.errno()).map(|()| {
                library().ibv_ack_async_event(&mut event);
                (event.event_type, event.element.qp)
            })
        }
    };
    a.to_state(State::IBV_QPS_SQD).unwrap();
    assert_eq!(next_event(), Err(Errno::EAGAIN));
    a.to_state(State::IBV_QPS_RTS).unwrap();
    let mask = Mask::IBV_QP_STATE | Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY;
    a.modify(&mut attr, mask).unwrap();
    assert_eq!(
        next_event(),
        Ok((ibv_event_type::IBV_EVENT_SQ_DRAINED, a.pair))
    );
    assert_eq!(next_event(), Err(Errno::EAGAIN));
    let write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 0);
    a.send(write, &mut [segment(source, 0, 64)]).unwrap();
    // In SQD, requests of the peer are still served.
    let back = request(2, ibv_wr_opcode::IBV_WR_RDMA_READ, source, 0);
    b.send(back, &mut [segment(target, 0, 8)]).unwrap();
    assert_eq!(b.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    assert!(a.poll().is_none(), "sent in SQD");
    a.to_state(State::IBV_QPS_RTS).unwrap();
    assert_eq!(a.completion().wr_id, 1);
    deregister(source);
    deregister(target);
    assert_eq!(far, near);
    a.close();
    b.close();
}

#[test]
fn attributes_of_a_connection_change_in_sqd() {
    let (a, b) = sides();
    a.to_state(State::IBV_QPS_SQD).unwrap();
    let mut attr = ibv_qp_attr {
        ah_attr: a.path(),
        timeout: 12,
        retry_cnt: 3,
        rnr_retry: 2,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 2,
        min_rnr_timer: 5,
        ..Default::default()
    };
    let mask = Mask::IBV_QP_AV
        | Mask::IBV_QP_TIMEOUT
        | Mask::IBV_QP_RETRY_CNT
        | Mask::IBV_QP_RNR_RETRY
        | Mask::IBV_QP_MAX_QP_RD_ATOMIC
        | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
        | Mask::IBV_QP_MIN_RNR_TIMER;
    a.modify(&mut attr, mask).unwrap();
    let (set, _) = a.query();
    assert_eq!((set.timeout, set.retry_cnt, set.rnr_retry), (12, 3, 2));
    assert_eq!(
        (set.max_rd_atomic, set.max_dest_rd_atomic, set.min_rnr_timer),
        (1, 2, 5)
    );
    attr.max_dest_rd_atomic = 200;
    let refused = a.modify(&mut attr, Mask::IBV_QP_MAX_DEST_RD_ATOMIC);
    assert_eq!(refused.unwrap_err().errno(), Errno::EINVAL);
    a.to_state(State::IBV_QPS_RTS).unwrap();
    let (mut near, mut far) = (vec![7; 8], vec![0; 8]);
    let (source, target) = (a.register(&mut near), b.register(&mut far));
    let write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 0);
    a.send(write, &mut [segment(source, 0, 64)]).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    deregister(source);
    deregister(target);
    a.close();
    b.close();
}

#[test]
fn alternate_paths_are_refused() {
    let (a, b) = sides();
    let mut attr = ibv_qp_attr {
        path_mig_state: ibv_mig_state::IBV_MIG_ARMED,
        ..Default::default()
    };
    for mask in [Mask::IBV_QP_ALT_PATH, Mask::IBV_QP_PATH_MIG_STATE] {
        let refused = a.modify(&mut attr, mask);
        assert_eq!(refused.unwrap_err().errno(), Errno::EINVAL);
    }
    a.close();
    b.close();
}

#[test]
fn a_failed_request_stops_the_send_queue_of_an_unreliable_connection_until_it_is_resumed() {
    let (a, b) = sides_of(Type::IBV_QPT_UC);
    let (mut near, mut far) = (vec![7; 8], vec![0; 8]);
    let (source, target) = (a.register(&mut near), b.register(&mut far));
    let write = |id| request(id, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, target, 0);
    b.receive(9, &mut []).unwrap();
    let mut beyond = [segment(source, 8, 64)];
    a.send(write(1), &mut beyond).unwrap();
    a.send(write(2), &mut [segment(source, 0, 64)]).unwrap();
    let statuses = [a.completion(), a.completion()].map(|wc| (wc.wr_id, wc.status));
    let expected = [
        (1, ibv_wc_status::IBV_WC_LOC_PROT_ERR),
        (2, ibv_wc_status::IBV_WC_WR_FLUSH_ERR),
    ];
    assert_eq!(statuses, expected);
    // The structure contains the state that was last set or queried, as in libibverbs; UCX asserts that.
    // SAFETY: the queue pair is alive.
    let known = || unsafe { (*a.pair).state };
    let (mut other, mut made) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    let mask = Mask::IBV_QP_AV.0 as i32;
    // SAFETY: as above.
    unsafe { library().ibv_query_qp(a.pair, &mut other, mask, &mut made) }.unwrap();
    assert_eq!(known(), State::IBV_QPS_RTS);
    assert_eq!(a.state(), State::IBV_QPS_SQE);
    assert_eq!(known(), State::IBV_QPS_SQE);
    let mut attr = ibv_qp_attr {
        qp_state: State::IBV_QPS_RTS,
        cur_qp_state: State::IBV_QPS_SQE,
        ..Default::default()
    };
    let mask = Mask::IBV_QP_STATE | Mask::IBV_QP_CUR_STATE;
    a.modify(&mut attr, mask).unwrap();
    a.send(write(3), &mut [segment(source, 0, 64)]).unwrap();
    let sent = a.completion();
    assert_eq!(
        (sent.wr_id, sent.status),
        (3, ibv_wc_status::IBV_WC_SUCCESS)
    );
    let received = b.completion();
    assert_eq!((received.wr_id, received.byte_len), (9, 64));
    let read = request(4, ibv_wr_opcode::IBV_WR_RDMA_READ, target, 0);
    let refused = a.send(read, &mut [segment(source, 0, 8)]);
    assert_eq!(refused.unwrap_err(), Errno::EINVAL);
    deregister(source);
    deregister(target);
    assert_eq!(far, near);
    a.close();
    b.close();
}

/// Returns whether `ibv_modify_qp` permits a transition, by IBTA figure 124 and table 91. SQE is entered only because
/// of errors.
fn follows(kind: Type, from: State, to: State) -> bool {
    let next: &[State] = match from {
        State::IBV_QPS_RESET => &[State::IBV_QPS_RESET, State::IBV_QPS_INIT],
        State::IBV_QPS_INIT => &[State::IBV_QPS_INIT, State::IBV_QPS_RTR],
        State::IBV_QPS_RTR => &[State::IBV_QPS_RTS],
        State::IBV_QPS_RTS => &[State::IBV_QPS_RTS, State::IBV_QPS_SQD],
        State::IBV_QPS_SQD => &[State::IBV_QPS_RTS, State::IBV_QPS_SQD],
        State::IBV_QPS_SQE if kind != Type::IBV_QPT_RC => &[State::IBV_QPS_RTS],
        _ => &[],
    };
    let always = match from {
        State::IBV_QPS_RESET => false,
        _ => matches!(to, State::IBV_QPS_RESET | State::IBV_QPS_ERR),
    };
    always || next.contains(&to)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// In any sequence of transitions, those in the specification succeed, and all others fail with `EINVAL` and change
    /// nothing.
    #[test]
    fn a_queue_pair_goes_through_the_states_of_the_specification(
        kind in prop::sample::select(vec![Type::IBV_QPT_RC, Type::IBV_QPT_UC, Type::IBV_QPT_UD]),
        targets in prop::collection::vec(prop::sample::select(STATES.to_vec()), 1..40),
    ) {
        let side = Side::new(kind);
        let mut state = State::IBV_QPS_RESET;
        for to in targets {
            let (mut attr, full) = side.change_to(to, side.number());
            let forward = matches!(
                (state, to),
                (State::IBV_QPS_RESET, State::IBV_QPS_INIT)
                    | (State::IBV_QPS_INIT, State::IBV_QPS_RTR)
                    | (State::IBV_QPS_RTR, State::IBV_QPS_RTS)
            );
            let mask = if forward { full } else { Mask::IBV_QP_STATE };
            let changed = side.modify(&mut attr, mask);
            if follows(kind, state, to) {
                prop_assert!(changed.is_ok(), "{} to {}: {:?}", state, to, changed);
                state = to;
            } else {
                let refused = changed.map_err(|error| error.errno());
                prop_assert_eq!(refused, Err(Errno::EINVAL), "{} to {}", state, to);
            }
            prop_assert_eq!(side.state(), state);
        }
        side.close();
    }
}
