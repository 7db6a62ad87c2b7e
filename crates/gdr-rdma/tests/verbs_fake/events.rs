use std::net::Ipv4Addr;
use std::time::Duration;

use fake_ibverbs::{DeviceSpec, Fault};
use gdr_rdma::{
    Access, AsyncEvent, Buffer, Deadline, Error, Event, QueuePairOptions, RecvRequest, SendRequest,
    State, VerbsError, WcStatus, WrId,
};

use crate::fixture::*;

#[test]
fn a_fatal_device_event_is_reported_and_ends_all_waits() {
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    let source = a.memory(64);
    let target = b.memory(64);
    a.pair.post_recv(RecvRequest::new(WrId(1))).unwrap();
    hold(&fake, &a.name(), true);
    let write =
        SendRequest::write(WrId(2), target.remote().at(0)).segment(source.segment(0, 64).unwrap());
    a.pair.post_send(write).unwrap();
    fake.fault(&a.name(), Fault::Fatal);
    assert_eq!(
        a.device.wait_event(soon()).unwrap(),
        AsyncEvent::DeviceFatal
    );
    let ends = [a.queue.wait(soon()).unwrap(), a.queue.wait(soon()).unwrap()];
    assert!(
        ends.iter().all(|end| end.status == WcStatus::WrFlushed),
        "{ends:?}"
    );
    assert_eq!(a.pair.state(), State::Error);
    let error = a.queue.wait(soon()).unwrap_err();
    assert!(
        matches!(error, Error::Verbs(VerbsError::DeviceGone { .. })),
        "{error}"
    );
    let buffer = Buffer::host(64).unwrap();
    let error = a.domain.register(&buffer, Access::all()).unwrap_err();
    assert!(
        error.to_string().contains("open the device again"),
        "{error}"
    );
}

#[test]
fn a_wait_ends_when_the_device_fails_even_without_a_call_for_events() {
    let fake = clean_fake();
    let (a, _b) = sides(&fake);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| a.queue.wait(soon()));
        fake.fault(&a.name(), Fault::Fatal);
        let error = waiter.join().unwrap().unwrap_err();
        assert!(
            matches!(error, Error::Verbs(VerbsError::DeviceGone { .. })),
            "{error}"
        );
    });
}

#[test]
fn events_report_that_a_port_goes_down_and_up() {
    let fake = clean_fake();
    let (a, _b) = sides(&fake);
    for (state, event) in [
        (1, AsyncEvent::PortDown { port: 1 }),
        (4, AsyncEvent::PortActive { port: 1 }),
    ] {
        set_port(&fake, &a.name(), 1, state);
        assert_eq!(a.device.wait_event(soon()).unwrap(), event);
    }
    assert_eq!(a.device.poll_event(), None);
}

#[test]
fn a_wait_for_an_event_ends_at_its_deadline() {
    let fake = clean_fake();
    let (a, _b) = sides(&fake);
    let error = a
        .device
        .wait_event(Deadline::after(Duration::from_millis(20)))
        .unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    let error = a
        .queue
        .wait(Deadline::after(Duration::from_millis(20)))
        .unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
}

#[test]
fn a_peer_that_may_not_write_here_is_reported_with_its_queue_pair() {
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(64), b.memory(64));
    let write =
        SendRequest::write(WrId(1), target.remote().at(1)).segment(source.segment(0, 64).unwrap());
    a.pair.post_send(write).unwrap();
    assert_eq!(a.status(), WcStatus::RemoteAccess);
    let qpn = b.pair.qpn();
    let event = Event::AccessViolation;
    assert_eq!(
        b.device.wait_event(soon()).unwrap(),
        AsyncEvent::QueuePair { qpn, event }
    );
}

#[test]
fn an_event_of_a_newer_kernel_is_reported_by_its_number() {
    let fake = clean_fake();
    let (a, _b) = sides(&fake);
    fake.fault(&a.name(), Fault::Raise(4242, None));
    let event = AsyncEvent::Other { number: 4242 };
    assert_eq!(a.device.wait_event(soon()).unwrap(), event);
}

#[test]
fn events_that_are_not_read_do_not_keep_a_queue_pair() {
    let fake = clean_fake();
    let (a, _b) = sides(&fake);
    fake.fault(&a.name(), Fault::Raise(1, Some(a.pair.qpn().get())));
}

#[test]
fn an_overrun_completion_queue_returns_its_completions_then_reports_the_overrun() {
    for (a, b) in [
        (roce(), roce()),
        (
            DeviceSpec::rxe("rxe_cq_a", Ipv4Addr::new(10, 9, 0, 1)),
            DeviceSpec::rxe("rxe_cq_b", Ipv4Addr::new(10, 9, 0, 2)),
        ),
    ] {
        let fake = clean_fake();
        let (a, b) = (side(&fake, &a), side(&fake, &b));
        let small = a.device.completion_queue(1);
        let pair = a.domain.queue_pair(&QueuePairOptions::new(&small)).unwrap();
        pair.connect(&b.pair.endpoint(), &options()).unwrap();
        b.pair.connect(&pair.endpoint(), &options()).unwrap();
        let target = b.memory(64);
        hold(&fake, &a.name(), true);
        for id in 0..2 {
            let write = SendRequest::write(WrId(id), target.remote().at(0));
            pair.post_send(write.inline(b"x")).unwrap();
        }
        hold(&fake, &a.name(), false);
        let lost = AsyncEvent::CompletionQueueLost;
        assert_eq!(a.device.wait_event(soon()).unwrap(), lost);
        assert_eq!(small.wait(soon()).unwrap().id, WrId(0));
        let error = small.wait(soon()).unwrap_err();
        assert!(matches!(error, Error::Verbs(VerbsError::Verb { .. })));
    }
}

#[test]
fn a_failed_poll_names_its_verb_and_the_queue_stays_usable() {
    let verb = "ibv_poll_cq";
    for spec in [
        roce(),
        DeviceSpec::rxe("rxe_poll", Ipv4Addr::new(10, 9, 0, 3)),
    ] {
        let fake = clean_fake();
        let (a, b) = connected(&fake, &spec, &roce());
        let target = b.memory(64);
        let write = SendRequest::write(WrId(4), target.remote().at(0));
        a.pair.post_send(write.inline(b"x")).unwrap();
        fake.fault(&a.name(), Fault::Refuse(verb.to_owned(), libc::EIO, 1));
        let error = a.queue.poll().unwrap_err().to_string();
        assert!(error.contains(verb) && error.contains("EIO"), "{error}");
        assert_eq!(a.done().id, WrId(4));
    }
}
