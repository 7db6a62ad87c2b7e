use std::ffi::c_int;
use std::ptr;

use fake_ibverbs::Fault;
use gdr_verbs_sys::*;

use crate::connection::*;

/// Returns whether the descriptor is readable now.
fn readable(fd: c_int) -> bool {
    readable_within(fd, 0)
}

/// Returns whether the descriptor is readable within this many milliseconds.
fn readable_within(fd: c_int, limit: c_int) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&mut poll, 1, limit) == 1 }
}

#[test]
fn a_port_raises_an_event_when_it_goes_down_and_comes_back() {
    let fake = two_devices();
    let verbs = fake.verbs();
    let context = open(verbs, "mlx5_0");
    // SAFETY: the context is open.
    let fd = unsafe { (*context).async_fd };
    assert!(!readable(fd));
    for (state, event) in [
        (
            ibv_port_state::IBV_PORT_DOWN,
            ibv_event_type::IBV_EVENT_PORT_ERR,
        ),
        (
            ibv_port_state::IBV_PORT_ACTIVE,
            ibv_event_type::IBV_EVENT_PORT_ACTIVE,
        ),
    ] {
        fake.fault("mlx5_0", Fault::Port(1, state.0));
        assert!(readable(fd));
        let mut raised = ibv_async_event::default();
        // SAFETY: the context is open, and there is an event.
        unsafe { verbs.ibv_get_async_event(context, &mut raised) }.unwrap();
        assert_eq!(raised.event_type, event);
        // SAFETY: the event is about a port.
        assert_eq!(unsafe { raised.element.port_num }, 1);
        // SAFETY: the event was returned, and is acknowledged once.
        unsafe { verbs.ibv_ack_async_event(&mut raised) };
        // SAFETY: the context is open.
        let port = unsafe { verbs.query_port(context, 1) }.unwrap();
        assert_eq!(port.state, state);
    }
    // SAFETY: the context is open and unused.
    unsafe { verbs.ibv_close_device(context) }.unwrap();
    fake.assert_clean();
}

#[test]
fn an_armed_queue_raises_one_completion_event() {
    let fake = two_devices();
    let verbs = fake.verbs();
    let (a, b) = (
        Side::new(verbs, "mlx5_0"),
        Side::with_channel(verbs, "mlx5_1"),
    );
    connect(&a, &b, FOREVER);
    // SAFETY: the queue and its channel are alive.
    let fd = unsafe {
        ibv_req_notify_cq(b.queue, Notify::Next).unwrap();
        (*b.channel).fd
    };
    assert!(!readable(fd));
    for id in [1, 2] {
        b.receive(id, &mut []).unwrap();
        let send = ibv_send_wr {
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            ..Default::default()
        };
        a.send(send, &mut []).unwrap();
    }
    assert!(readable_within(fd, LIMIT.as_millis() as c_int));
    let (mut queue, mut own) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the channel is alive and has an event, which is acknowledged once.
    unsafe {
        verbs
            .ibv_get_cq_event(b.channel, &mut queue, &mut own)
            .unwrap();
        verbs.ibv_ack_cq_events(queue, 1);
    }
    assert_eq!((queue, own.addr()), (b.queue, OWN));
    assert!(
        !readable(fd),
        "one event for the request, not for each completion"
    );
    assert_eq!((b.completion().wr_id, b.completion().wr_id), (1, 2));
    a.close();
    b.close();
    fake.assert_clean();
}
