use canvas_direct::wire::{Caller, LENGTH_BYTES};
use proptest::prelude::*;

use super::*;

const RATE: frame::LaneRate = frame::LaneRate {
    rate_bytes: 1 << 20,
    burst_bytes: 1 << 16,
};

fn asked(n: u8) -> frame::Lane {
    frame::Lane {
        tenant: [n; 16],
        secret: [n; 32],
        rate: RATE,
    }
}

fn opening(n: u8, ticket: &Ticket) -> Vec<u8> {
    let mut caller = Caller::new(&Keys::new(&[n; 32], ticket));
    caller.opening(ticket).unwrap()[LENGTH_BYTES..].to_vec()
}

fn outbox() -> Arc<Outbox> {
    Arc::new(Outbox::new().unwrap())
}

#[test]
fn a_ticket_opens_one_lane_once() {
    let lanes = Lanes::default();
    let ticket = [9; 16];
    let number = lanes.ask([1; 16], &asked(3), ticket, 0, 0).unwrap();
    // An eavesdropper without the key cannot use it up.
    assert!(lanes.open(&opening(4, &ticket), &outbox(), 0).is_none());
    assert!(lanes.open(&opening(3, &[8; 16]), &outbox(), 0).is_none());
    let first = outbox();
    let (lane, _) = lanes.open(&opening(3, &ticket), &first, 0).unwrap();
    assert_eq!((lane.client, lane.tenant), ([1; 16], [3; 16]));
    assert!(lanes.open(&opening(3, &ticket), &outbox(), 0).is_none());
    lane.note(100);
    let used = Used {
        reads: 1,
        bytes: 100,
    };
    assert_eq!(lanes.set_rate(&[1; 16], number, RATE, 0), Ok(used));
    let of_another = lanes.set_rate(&[2; 16], number, RATE, 0);
    assert_eq!(of_another, Err(ErrorCode::NoLane));
    assert_eq!(lanes.end(&[2; 16], number), Err(ErrorCode::NoLane));
    assert!(!first.is_closed());
    assert_eq!(lanes.end(&[1; 16], number), Ok(used));
    assert!(first.is_closed());
    assert_eq!(lanes.end(&[1; 16], number), Err(ErrorCode::NoLane));
}

#[test]
fn a_ticket_is_good_for_a_while() {
    let lanes = Lanes::default();
    let late = TICKET_TIME.as_millis() as u64 + 1;
    for (n, now_ms, good) in [(1, late - 1, true), (2, late, false)] {
        let ticket = [n; 16];
        lanes.ask([1; 16], &asked(n), ticket, 0, 0).unwrap();
        let opened = lanes.open(&opening(n, &ticket), &outbox(), now_ms);
        assert_eq!(opened.is_some(), good);
    }
}

#[test]
fn a_client_has_so_many_lanes() {
    let lanes = Lanes::default();
    let ticket = |n: usize| (n as u128).to_le_bytes();
    for n in 0..LANES_OF_A_CLIENT_MAX {
        lanes.ask([1; 16], &asked(1), ticket(n), 0, 0).unwrap();
    }
    let more = |now_ms| lanes.ask([1; 16], &asked(1), ticket(1000), now_ms, 0);
    assert_eq!(more(0), Err(ErrorCode::NoLane));
    lanes.ask([2; 16], &asked(1), ticket(2000), 0, 0).unwrap();
    // Channels whose connections have closed make room.
    let ended = outbox();
    assert!(lanes.open(&opening(1, &ticket(5)), &ended, 0).is_some());
    assert_eq!(more(0), Err(ErrorCode::NoLane));
    ended.close();
    assert!(more(0).is_ok());
    assert_eq!(more(0), Err(ErrorCode::NoLane));
    // Unused tickets expire.
    assert!(more(TICKET_TIME.as_millis() as u64 + 1).is_ok());
}

/// Many channels of a tenant read no more than one; another tenant, or another client, has its own
/// limit.
#[test]
fn lanes_of_a_tenant_share_a_bucket() {
    let lanes = Lanes::default();
    let open = |n: u8, client: u8, tenant: u8| {
        let asked = frame::Lane {
            secret: [n; 32],
            ..asked(tenant)
        };
        let number = lanes.ask([client; 16], &asked, [n; 16], 0, 0).unwrap();
        let opened = lanes.open(&opening(n, &[n; 16]), &outbox(), 0);
        (number, opened.unwrap().0)
    };
    let burst = u64::from(RATE.burst_bytes);
    let all: Vec<(u64, Arc<Lane>)> = (0..8).map(|n| open(n, 1, 3)).collect();
    let others = [open(20, 1, 4).1, open(21, 2, 3).1];
    let taken = |now_ns: u64| {
        let takes = |lane: &Arc<Lane>| {
            let mut bytes = 0;
            while lane.bucket().take(1024, now_ns) {
                bytes += 1024;
            }
            bytes
        };
        all.iter().map(|(_, lane)| takes(lane)).sum::<u64>()
    };
    assert_eq!(taken(0), burst);
    // Another channel adds nothing, and neither does one that has ended.
    let (number, more) = open(9, 1, 3);
    assert!(!more.bucket().take(1, 0));
    lanes.end(&[1; 16], number).unwrap();
    assert_eq!(taken(0), 0);
    for lane in &others {
        assert!(lane.bucket().take(burst, 0));
    }
    // A rate set for one of them applies to all.
    let slow = frame::LaneRate {
        rate_bytes: 10 << 10,
        ..RATE
    };
    lanes.set_rate(&[1; 16], all[5].0, slow, 0).unwrap();
    assert_eq!(taken(1_000_000_000), 10 << 10);
}

#[derive(Clone, Debug)]
enum Op {
    Ask(u8),
    Open(u8),
    End(u8, u8),
    EndAll(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0u8..3).prop_map(Op::Ask),
        (0u8..12).prop_map(Op::Open),
        (0u8..3, 0u8..12).prop_map(|(c, n)| Op::End(c, n)),
        (0u8..3).prop_map(Op::EndAll),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Compared with a list: who opens which channel, and whose connections are closed.
    #[test]
    fn as_a_list(ops in prop::collection::vec(op(), 1..60)) {
        struct Known { client: u8, there: bool, opened: Option<Arc<Outbox>> }
        let lanes = Lanes::default();
        let mut list: Vec<Known> = Vec::new();
        let ticket = |n: u8| [n + 1; 16];
        for op in ops {
            match op {
                Op::Ask(client) => {
                    let n = list.len() as u8;
                    let number = lanes.ask([client; 16], &asked(n), ticket(n), 0, 0);
                    prop_assert_eq!(number, Ok(u64::from(n) + 1));
                    list.push(Known { client, there: true, opened: None });
                }
                Op::Open(n) => {
                    let outbox = outbox();
                    let opened = lanes.open(&opening(n, &ticket(n)), &outbox, 0);
                    let known = list.get_mut(usize::from(n));
                    let good = known.filter(|k| k.there && k.opened.is_none());
                    prop_assert_eq!(opened.is_some(), good.is_some());
                    if let Some(known) = good {
                        known.opened = Some(outbox);
                    }
                }
                Op::End(client, n) => {
                    let ended = lanes.end(&[client; 16], u64::from(n) + 1);
                    let known = list.get_mut(usize::from(n));
                    let good = known.filter(|k| k.there && k.client == client);
                    prop_assert_eq!(ended.is_ok(), good.is_some());
                    if let Some(known) = good {
                        known.there = false;
                    }
                }
                Op::EndAll(client) => {
                    lanes.end_all(&[client; 16]);
                    for known in list.iter_mut().filter(|k| k.client == client) {
                        known.there = false;
                    }
                }
            }
            for known in &list {
                if let Some(outbox) = &known.opened {
                    prop_assert_eq!(outbox.is_closed(), !known.there);
                }
            }
        }
    }
}
