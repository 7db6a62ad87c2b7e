use super::*;
use crate::pci::{Aer, Link};
use crate::topology::SmiClass;
use crate::{Absence, Inventory, Source};

fn bdf(text: &str) -> Bdf {
    text.parse().unwrap()
}

#[test]
fn it_has_eight_gpus_and_ten_nics_that_find_their_interfaces() {
    let node = healthy();
    let inventory = Inventory::read(&node);
    let gpus: Vec<String> = inventory
        .gpus
        .iter()
        .map(|gpu| gpu.bdf.to_string())
        .collect();
    assert_eq!(gpus, GPUS);
    let netdevs = inventory.netdevs.as_ref().unwrap();
    let mut nics = Vec::new();
    for (device, bdf) in inventory.rdma_functions() {
        assert_eq!(device.name, format!("mlx5_{}", nics.len()));
        assert_eq!(device.netdevs(netdevs).len(), 1, "{}", device.name);
        assert!(device.ports[0].is_active());
        nics.push(bdf.to_string());
    }
    assert_eq!(nics, NICS);
}

#[test]
fn every_gpu_has_two_nics_behind_its_own_switch() {
    let node = healthy();
    let inventory = Inventory::read(&node);
    let topology = inventory.topology().unwrap();
    for (gpu, close) in GPUS.iter().zip([
        [1, 2],
        [1, 2],
        [3, 4],
        [3, 4],
        [6, 7],
        [6, 7],
        [8, 9],
        [8, 9],
    ]) {
        for (number, nic) in NICS.iter().enumerate() {
            let class = topology.relation(bdf(gpu), bdf(nic)).unwrap().smi;
            let expected = if close.contains(&number) {
                SmiClass::Pix
            } else if (gpu < &"0000:80") == (nic < &"0000:80") {
                SmiClass::Node
            } else {
                SmiClass::Sys
            };
            assert_eq!(class, expected, "{gpu} {nic}");
        }
    }
}

#[test]
fn the_healthy_node_redirects_nowhere_and_every_link_is_at_its_best() {
    let inventory = Inventory::read(&healthy());
    let tree = inventory.tree.as_ref().unwrap();
    assert_eq!(tree.len(), 8 + 10 + 2 + 4 * 6);
    for function in tree.functions() {
        if let Ok(acs) = function.acs {
            assert!(acs.redirecting().is_empty(), "{}", function.bdf);
        }
        if function.identity.vendor == Some(crate::pci::VendorId(0x15b3)) {
            assert_eq!(function.link, function.link_capable);
        }
        let express = function.express.as_ref().unwrap();
        assert_eq!(function.link.as_ref().ok(), express.link.as_ref());
        assert!(matches!(function.aer, Ok(Aer { uncorrectable, .. }) if uncorrectable.is_empty()));
    }
    let gpu = tree.get(bdf(GPUS[0])).unwrap();
    assert_eq!(gpu.bars.as_ref().unwrap()[1].size, 128 << 30);
    let rebar = &gpu.resizable_bars.as_ref().unwrap()[0];
    assert_eq!((rebar.bar, rebar.size), (2, 128 << 30));
    assert_eq!(rebar.largest(), Some(128 << 30));
}

#[test]
fn the_node_has_exactly_its_two_faults() {
    let (bad, good) = (Inventory::read(&node()), Inventory::read(&healthy()));
    let (bad, good) = (bad.tree.as_ref().unwrap(), good.tree.as_ref().unwrap());
    let changed: Vec<String> = bad
        .functions()
        .filter(|function| good.get(function.bdf) != Some(function))
        .map(|function| function.bdf.to_string())
        .collect();
    assert_eq!(changed, [REDIRECTING_PORT, NIC_PORTS[7], NARROW_NIC]);
    let port = bad.get(bdf(REDIRECTING_PORT)).unwrap();
    assert_eq!(
        port.acs.as_ref().unwrap().redirecting().to_string(),
        "ReqRedir CmpltRedir"
    );
    let nic = bad.get(bdf(NARROW_NIC)).unwrap();
    let narrow = Link {
        speed: LinkSpeed::GEN5,
        width: LinkWidth(8),
    };
    assert_eq!(nic.link, Ok(narrow));
    assert_eq!(nic.express.as_ref().unwrap().link, Some(narrow));
}

#[test]
fn every_setter_of_config_space_is_read_back() {
    let node = edit(healthy(), NICS[1], |nic| {
        nic.read_request(128)
            .payload(512)
            .relaxed_ordering(false)
            .extended_tags(false)
            .ten_bit_tags(false)
            .aspm(2)
            .ats(true)
            .aer(1 << 14, 1 << 6);
    });
    let inventory = Inventory::read(&node);
    let nic = inventory.function(bdf(NICS[1])).unwrap();
    let express = nic.express.as_ref().unwrap();
    assert_eq!((express.read_request, express.payload), (128, 512));
    assert!(!express.relaxed_ordering && !express.extended_tags && !express.ten_bit_tags);
    assert!(express.aspm.l1 && !express.aspm.l0s);
    assert!(nic.ats.as_ref().unwrap().enabled);
    let aer = nic.aer.as_ref().unwrap();
    assert_eq!(
        (aer.uncorrectable.bits(), aer.correctable.bits()),
        (1 << 14, 1 << 6)
    );
}

#[test]
fn a_user_sees_no_capabilities_and_a_lost_gpu_only_ones() {
    let node = edit(healthy(), GPUS[0], |gpu| {
        gpu.header_only();
    });
    let node = edit(node, GPUS[1], |gpu| {
        gpu.gone();
    });
    let node = edit(node, "0000:ff:1f.7", |_| {
        unreachable!("there is no such function")
    });
    let inventory = Inventory::read(&node);
    assert_eq!(
        inventory.function(bdf(GPUS[0])).unwrap().aer,
        Err(Absence::Denied)
    );
    let gone = node.read(&format!("/sys/bus/pci/devices/{}/config", GPUS[1]));
    assert!(gone.as_ref().unwrap().iter().all(|byte| *byte == 0xff));
}

#[test]
fn links_of_sysfs_have_the_right_targets() {
    let node = healthy();
    let path = format!("/sys/bus/pci/devices/{}", GPUS[0]);
    assert_eq!(
        node.link_name(&format!("{path}/driver")),
        Ok("nvidia".to_owned())
    );
    assert_eq!(
        node.resolve("/sys/class/infiniband/mlx5_1/device"),
        node.resolve(&format!("/sys/bus/pci/devices/{}", NICS[1]))
    );
    let group = node.link_name(&format!("{path}/iommu_group")).unwrap();
    let members = node.list(&format!("/sys/kernel/iommu_groups/{group}/devices"));
    assert_eq!(members.unwrap().len(), 10);
    assert_eq!(
        node.text(&format!("{path}/iommu_group/type")),
        Ok("identity".to_owned())
    );
    assert_eq!(
        node.resolve(&format!("/sys/bus/pci/drivers/nvidia/{}", GPUS[0])),
        node.resolve(&path)
    );
}
