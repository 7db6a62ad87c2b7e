//! The conformance suite of all providers, run on the software NIC, and on the same NIC through libibverbs: the fake is
//! gdr-verbs' own library, with faults only if the test plans them.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

mod nic {
    use conformance::{Bench, FIRST, SECOND, V6, conformance, soft};

    fn run(test: fn(&Bench<'_>)) {
        for (near, far) in [(FIRST, SECOND), (V6, V6)] {
            if soft(near).and(soft(far)).is_some() {
                test(&Bench::new(&|| soft(near).unwrap(), &|| soft(far).unwrap()));
            }
        }
    }

    conformance!(run);
}

mod verbs {
    use std::net::Ipv4Addr;

    use conformance::{Bench, conformance};
    use fake_ibverbs::{DeviceSpec, Fake};
    use gdr_rdma::{Device, VerbsOptions};

    /// Runs a test over devices with and without extended interfaces; the results must be the same.
    fn run(test: fn(&Bench<'_>)) {
        let fake = Fake::load();
        let spec = |name: &str, last| DeviceSpec::roce(name, Ipv4Addr::new(10, 1, 0, last));
        let plain = |spec| DeviceSpec {
            extended_queries: false,
            extended_queues: false,
            extended_requests: false,
            // mlx5 devices create queue pairs with a function of their own.
            scatter_to_cqe: false,
            ..spec
        };
        fake.add(spec("mlx5_0", 1));
        fake.add(spec("mlx5_1", 2));
        fake.add(plain(spec("rxe0", 3)));
        fake.add(plain(spec("rxe1", 4)));
        let options = VerbsOptions::new().library(fake.verbs());
        let open = |name: &str| Device::verbs(&options.clone().device(name)).unwrap();
        for (near, far) in [("mlx5_0", "mlx5_1"), ("rxe0", "rxe1")] {
            test(&Bench::new(&|| open(near), &|| open(far)));
            fake.assert_clean();
        }
    }

    conformance!(run);
}
