//! Objects in memory of a simulated GPU.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

mod fixture;

use std::sync::Arc;
use std::time::Duration;

use gdr_cuda::{DeviceBuffer, Gpu, MemoryKind, Ordinal, SimDriver, Stream};
use gdr_object::{
    Buffer, BusyReason, Checksum, Element, Error, Grantee, Location, Mode, ObjectOptions, Place,
    Rights, Shape, WhenFull,
};

use fixture::{limit, name, row, server};

const LIMIT: Duration = Duration::from_secs(60);
/// The length of the objects, which is not a multiple of the alignment of slots.
const LEN: u64 = 1_000_004;

fn gpu() -> Gpu {
    Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap()
}

fn words() -> ObjectOptions {
    ObjectOptions::new(Element::U32, Shape::row(LEN / 4).unwrap())
}

fn tensor(gpu: &Gpu, len: u64) -> DeviceBuffer {
    gpu.allocate(MemoryKind::Plain, len).unwrap()
}

#[test]
fn tensors_are_published_by_a_stream_and_read_into_gpu_memory() {
    let (gpu, server) = (gpu(), server());
    for place in [Place::gpu(&gpu), Place::gpu_staged(&gpu)] {
        let object = server.create(name("w"), words(), &place).unwrap();
        let info = object.info().unwrap();
        assert!(matches!(
            &info.location,
            Location::Gpu {
                simulated: true,
                ..
            }
        ));
        let link = fixture::link(&server);
        let remote = link.open(name("w"), limit()).unwrap();
        // The reader's memory is on a GPU, too.
        let received = Arc::new(tensor(&gpu, LEN));
        let memory = link
            .memory(&Buffer::staged(Arc::clone(&received)).unwrap())
            .unwrap();
        let (stream, check) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let source = tensor(&gpu, LEN);
        let mut seen = None;
        for seed in 1..=5 {
            stream
                .fill_pattern(&source, 0, LEN / 4, seed, LIMIT)
                .unwrap();
            let epoch = object.publish_from(&source, &stream).unwrap();
            // Later work on the stream may overwrite the tensor immediately.
            stream.fill_pattern(&source, 0, LEN / 4, 99, LIMIT).unwrap();
            assert_eq!(remote.wait_newer(seen, limit()).unwrap(), epoch);
            assert_eq!(remote.get_into(&memory, limit()).unwrap(), epoch);
            let report = check
                .verify_pattern(&received, 0, LEN / 4, seed, LIMIT)
                .unwrap();
            assert_eq!(report.mismatches, 0, "{seed} {info:?}");
            seen = Some(epoch);
        }
    }
}

#[test]
fn checksums_are_computed_by_kernels_of_both_sides_and_checked() {
    let (gpu, server) = (gpu(), server());
    let options = words()
        .checksum(Checksum::Sum64)
        .grant(Grantee::Everyone, Rights::ReadWrite);
    let object = server
        .create(name("w"), options, &Place::gpu(&gpu))
        .unwrap();
    let link = fixture::link(&server);
    let remote = link.open(name("w"), limit()).unwrap();
    let received = Arc::new(tensor(&gpu, LEN));
    let memory = link.gpu_memory(Arc::clone(&received)).unwrap();
    let (stream, source) = (gpu.stream().unwrap(), tensor(&gpu, LEN));
    stream.fill_pattern(&source, 0, LEN / 4, 1, LIMIT).unwrap();
    let published = object.publish_from(&source, &stream).unwrap();
    assert_eq!(remote.wait_newer(None, limit()).unwrap(), published);
    remote.get_into(&memory, limit()).unwrap();
    let report = stream
        .verify_pattern(&received, 0, LEN / 4, 1, LIMIT)
        .unwrap();
    assert_eq!(report.mismatches, 0);
    // The reader puts from GPU memory, and the owner compares the checksum before it publishes.
    stream
        .fill_pattern(&received, 0, LEN / 4, 2, LIMIT)
        .unwrap();
    let put = remote.put_from(&memory, limit()).unwrap();
    // With host memory, the reader's CPU computes the same checksum.
    let host = link.host_memory(LEN).unwrap();
    assert_eq!(remote.get_into(&host, limit()).unwrap(), put);
    let word = host.buffer().load_u32(400).unwrap();
    assert_eq!(u32::from_le(word), gdr_cuda::pattern_word(2, 100));
}

#[test]
fn the_path_says_whether_gpu_memory_is_mapped_or_staged_and_why() {
    let (gpu, server) = (gpu(), server());
    let mapped = server.create(name("a"), row(8), &Place::gpu(&gpu)).unwrap();
    let staged = server
        .create(name("b"), row(8), &Place::gpu_staged(&gpu))
        .unwrap();
    mapped.publish(&[1; 8], limit()).unwrap();
    staged.publish(&[2; 8], limit()).unwrap();
    let link = fixture::link(&server);
    let listed = link.list(limit()).unwrap();
    let paths: Vec<_> = listed.iter().map(|it| it.path.method.as_str()).collect();
    assert_eq!(paths, ["direct", "staged"]);
    assert_eq!(listed[1].path.why, "requested");
    assert_eq!(listed[0].location.to_string(), "gpu 0 (simulated)");
    for (object, byte) in [("a", 1), ("b", 2)] {
        let remote = link.open(name(object), limit()).unwrap();
        assert_eq!(remote.get(limit()).unwrap().1, [byte; 8]);
    }
}

#[test]
fn a_trainer_that_queues_many_steps_ahead_is_not_stopped_and_its_last_step_is_published() {
    let (gpu, server) = (gpu(), server());
    let object = server
        .create(name("w"), words(), &Place::gpu(&gpu))
        .unwrap();
    let stream = gpu.stream().unwrap();
    let source = tensor(&gpu, LEN);
    let (release, wait) = std::sync::mpsc::channel::<()>();
    stream
        .queue_call(move || {
            // Blocks the stream until the other side has queued everything.
            let _ = wait.recv_timeout(LIMIT);
        })
        .unwrap();
    let mut last = None;
    for _ in 0..20 {
        last = Some(object.publish_from(&source, &stream).unwrap());
    }
    let elsewhere = gpu.stream().unwrap();
    let busy = object.publish_from(&source, &elsewhere);
    assert!(matches!(
        busy,
        Err(Error::Busy {
            by: BusyReason::CopiesQueued,
            ..
        })
    ));
    let busy = object.publish(&vec![0; LEN as usize], limit());
    assert!(matches!(
        busy,
        Err(Error::Busy {
            by: BusyReason::CopiesQueued,
            ..
        })
    ));
    assert_eq!(object.newest(), None);
    release.send(()).unwrap();
    let remote = fixture::link(&server).open(name("w"), limit()).unwrap();
    let mut seen = None;
    while seen != last {
        seen = Some(remote.wait_newer(seen, limit()).unwrap());
    }
    assert_eq!(last.map(|it| it.get()), Some(20));
}

#[test]
fn copies_of_two_streams_are_published_in_the_order_in_which_they_were_queued() {
    let (gpu, server) = (gpu(), server());
    let ring = words().mode(Mode::Ring {
        slots: 3,
        when_full: WhenFull::DropOldest,
    });
    let object = server.create(name("r"), ring, &Place::gpu(&gpu)).unwrap();
    let (slow, quick) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let source = tensor(&gpu, LEN);
    let (release, held) = std::sync::mpsc::channel::<()>();
    let hold = move || {
        let _released = held.recv_timeout(LIMIT);
    };
    slow.queue_call(hold).unwrap();
    object.publish_from(&source, &slow).unwrap();
    let second = object.publish_from(&source, &quick).unwrap();
    // A stream that publishes waits for no other stream.
    quick.wait(LIMIT).unwrap();
    assert_eq!(object.newest(), None);
    drop(release);
    let remote = fixture::link(&server).open(name("r"), limit()).unwrap();
    let mut seen = None;
    while seen != Some(second) {
        seen = Some(remote.wait_newer(seen, limit()).unwrap());
    }
}

#[test]
fn a_ring_of_frames_in_gpu_memory_is_followed_without_loss() {
    let (gpu, server) = (gpu(), server());
    let ring = words().mode(Mode::Ring {
        slots: 3,
        when_full: WhenFull::Block,
    });
    let object = server
        .create(name("frames"), ring, &Place::gpu(&gpu))
        .unwrap();
    let link = fixture::link(&server);
    let remote = link.open(name("frames"), limit()).unwrap();
    let mut follower = remote.follow(limit()).unwrap();
    let memory = link.host_memory(LEN).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream = gpu.stream().unwrap();
            let source = tensor(&gpu, LEN);
            for frame in 1..=20_u32 {
                stream
                    .fill_pattern(&source, 0, LEN / 4, frame, LIMIT)
                    .unwrap();
                // A producer that must not lose a frame retries.
                loop {
                    match object.publish_from(&source, &stream) {
                        Ok(_) => break,
                        Err(Error::RingFull { .. } | Error::Busy { .. }) => {
                            std::thread::yield_now();
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
        let mut bytes = vec![0; LEN as usize];
        for frame in 1..=20_u32 {
            let received = follower.next_into(&memory, limit()).unwrap();
            assert_eq!(
                (received.epoch.get(), received.missed),
                (u64::from(frame), 0)
            );
            memory.buffer().read_at(0, &mut bytes).unwrap();
            for (at, word) in bytes.chunks_exact(4).enumerate() {
                let expected = gdr_cuda::pattern_word(frame, at as u64);
                assert_eq!(word, expected.to_le_bytes(), "{frame} {at}");
            }
        }
    });
}

#[test]
fn only_objects_on_a_gpu_are_published_by_a_stream() {
    let (gpu, server) = (gpu(), server());
    let stream = gpu.stream().unwrap();
    let host = server.create(name("h"), row(8), &Place::host()).unwrap();
    let refused = host.publish_from(&tensor(&gpu, 8), &stream).unwrap_err();
    assert!(
        refused.to_string().contains("is in host memory"),
        "{refused}"
    );
    assert!(host.publish(&[0; 8], limit()).is_ok());
    let object = server.create(name("g"), row(8), &Place::gpu(&gpu)).unwrap();
    let refused = object.publish_from(&tensor(&gpu, 9), &stream);
    assert!(matches!(refused, Err(Error::Size { .. })));
    let elsewhere = self::gpu();
    let refused = object.publish_from(&tensor(&elsewhere, 8), &stream);
    assert!(matches!(refused, Err(Error::Cuda(_))));
    assert!(object.publish(&[0; 8], limit()).is_ok());
    // Closing the object while a copy is queued frees the memory later.
    let copied = object.publish_from(&tensor(&gpu, 8), &stream).unwrap();
    assert_eq!(copied.get(), 2);
    object.close();
    stream.wait(LIMIT).unwrap();
}

#[test]
fn a_stream_of_another_library_publishes_and_the_source_is_kept_until_it_was_copied() {
    let (gpu, server) = (gpu(), server());
    let object = server
        .create(name("w"), words(), &Place::gpu(&gpu))
        .unwrap();
    let (owner, released) = std::sync::mpsc::channel::<()>();
    let source = gpu.allocate(MemoryKind::Plain, LEN).unwrap();
    let (ptr, len) = (source.ptr(), source.len());
    let own = gpu.stream().unwrap();
    own.fill_pattern(&source, 0, LEN / 4, 7, LIMIT).unwrap();
    // SAFETY: the owner keeps the memory, and the object keeps the buffer until the copy is complete.
    let buffer = unsafe { DeviceBuffer::from_owner(&gpu, ptr, len, (source, owner)) }.unwrap();
    // SAFETY: the default stream always exists, and `publish_from_kept` keeps the memory.
    let stream = unsafe { Stream::from_owner(&gpu, 0, ()) };
    let published = object
        .publish_from_kept(&Arc::new(buffer), &stream)
        .unwrap();
    drop(stream);
    // The owner has been dropped, not leaked.
    let disconnected = released.recv_timeout(LIMIT);
    assert_eq!(
        disconnected,
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected)
    );
    let link = fixture::link(&server);
    let remote = link.open(name("w"), limit()).unwrap();
    assert_eq!(remote.wait_newer(None, limit()).unwrap(), published);
    let host = link.host_memory(LEN).unwrap();
    remote.get_into(&host, limit()).unwrap();
    let word = host.buffer().load_u32(400).unwrap();
    assert_eq!(u32::from_le(word), gdr_cuda::pattern_word(7, 100));
}

#[test]
fn work_of_a_stream_packs_an_epoch_from_several_tensors() {
    const SIZE: u64 = 1 << 20;
    let (gpu, server) = (gpu(), server());
    let object = server
        .create(name("w"), row(SIZE), &Place::gpu(&gpu))
        .unwrap();
    let stream = gpu.stream().unwrap();
    let halves = [tensor(&gpu, SIZE / 2), tensor(&gpu, SIZE / 2)];
    for (seed, half) in (1..).zip(&halves) {
        stream.fill_pattern(half, 0, SIZE / 8, seed, LIMIT).unwrap();
    }
    let outside = object.write_on(&stream, |slot| {
        slot.queue_copy(SIZE / 2 + 1, &halves[0], &stream)
    });
    assert!(
        matches!(outside, Err(Error::OutOfRange { .. })),
        "{outside:?}"
    );
    assert_eq!(object.newest(), None);
    let published = object.write_on(&stream, |slot| {
        assert_eq!((slot.len(), slot.ptr().get() % 256), (SIZE, 0));
        slot.queue_copy(SIZE / 2, &halves[1], &stream)?;
        slot.queue_copy(0, &halves[0], &stream)
    });
    // The slot of the failed publication was freed, and its epoch is used again.
    assert_eq!(published.unwrap(), gdr_object::Epoch::FIRST);
    let link = fixture::link(&server);
    let remote = link.open(name("w"), limit()).unwrap();
    remote.wait_newer(None, limit()).unwrap();
    let host = link.host_memory(SIZE).unwrap();
    remote.get_into(&host, limit()).unwrap();
    for (seed, at) in [(1, 0), (2, SIZE / 2)] {
        let word = host.buffer().load_u32(at + 4).unwrap();
        assert_eq!(u32::from_le(word), gdr_cuda::pattern_word(seed, 1));
    }
}
