use std::ffi::c_int;
use std::ptr;

use fake_ibverbs::Request;
use gdr_verbs_sys::*;

use crate::connection::*;

/// Whether something can be read from the descriptor now.
fn readable(fd: c_int) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

#[test]
fn a_port_tells_that_it_went_down_and_came_back() {
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
        fake.tell(&Request::Port {
            device: "mlx5_0".to_owned(),
            port: 1,
            state: state.0,
        });
        assert!(readable(fd));
        let mut told = ibv_async_event::default();
        // SAFETY: the context is open, and there is an event.
        unsafe { verbs.ibv_get_async_event(context, &mut told) }.unwrap();
        assert_eq!(told.event_type, event);
        // SAFETY: the event is about a port.
        assert_eq!(unsafe { told.element.port_num }, 1);
        // SAFETY: the event was taken, and is acknowledged once.
        unsafe { verbs.ibv_ack_async_event(&mut told) };
        // SAFETY: the context is open.
        let port = unsafe { verbs.query_port(context, 1) }.unwrap();
        assert_eq!(port.state, state);
    }
    // SAFETY: nothing else uses it.
    unsafe { verbs.ibv_close_device(context) }.unwrap();
    fake.assert_clean();
}

#[test]
fn a_channel_tells_of_a_completion_once_it_was_asked_to() {
    let fake = two_devices();
    let verbs = fake.verbs();
    let (a, b) = (
        Side::new(verbs, "mlx5_0"),
        Side::with_channel(verbs, "mlx5_1"),
    );
    connect(&a, &b);
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
    assert!(readable(fd));
    let (mut told, mut own) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the channel is alive and has an event, which is acknowledged once.
    unsafe {
        verbs
            .ibv_get_cq_event(b.channel, &mut told, &mut own)
            .unwrap();
        verbs.ibv_ack_cq_events(told, 1);
    }
    assert_eq!((told, own.addr()), (b.queue, OWN));
    assert!(
        !readable(fd),
        "one event for the request, not for each completion"
    );
    assert_eq!((b.completion().wr_id, b.completion().wr_id), (1, 2));
    a.close();
    b.close();
    fake.assert_clean();
}
