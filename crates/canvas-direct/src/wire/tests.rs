extern crate std;

use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const TICKET: Ticket = [3; 16];

fn pair() -> (Caller, Answerer) {
    let keys = Keys::new(&[5; 32], &TICKET);
    let mut caller = Caller::new(&keys);
    let opening = caller.opening(&TICKET).unwrap();
    assert_eq!(ticket(&opening[LENGTH_BYTES..]), Some(TICKET));
    let mut answerer = Answerer::admit(&keys, &opening[LENGTH_BYTES..]).unwrap();
    let head = answerer.answer(Code::Done, 0).unwrap();
    let welcome = Head {
        code: Code::Done,
        len: 0,
    };
    assert_eq!(caller.decode_head(&head), Ok(welcome));
    (caller, answerer)
}

fn read(n: u32) -> Read {
    Read {
        handle: u64::from(n) << 40 | 7,
        offset: n * 16,
        len: n + 1,
    }
}

#[test]
fn the_two_directions_have_keys_of_their_own() {
    let keys = Keys::new(&[5; 32], &TICKET);
    assert_ne!(keys.up, keys.down);
    let others = [Keys::new(&[6; 32], &TICKET), Keys::new(&[5; 32], &[4; 16])];
    for other in others {
        assert_ne!(keys.up, other.up);
        assert_ne!(keys.down, other.down);
    }
}

#[test]
fn an_opening_of_another_lane_is_refused() {
    let keys = Keys::new(&[5; 32], &TICKET);
    let opening = Caller::new(&keys).opening(&TICKET).unwrap();
    for other in [Keys::new(&[6; 32], &TICKET), Keys::new(&[5; 32], &[4; 16])] {
        let refused = Answerer::admit(&other, &opening[LENGTH_BYTES..]);
        assert_eq!(refused.err(), Some(LaneError::Message));
    }
    assert_eq!(
        Answerer::admit(&keys, &opening).err(),
        Some(LaneError::Form)
    );
    let mut moved = opening;
    moved[LENGTH_BYTES] ^= 1;
    let refused = Answerer::admit(&keys, &moved[LENGTH_BYTES..]);
    assert_eq!(refused.err(), Some(LaneError::Message), "another ticket");
}

#[test]
fn one_request_at_a_time() {
    let (mut caller, mut answerer) = pair();
    assert_eq!(caller.opening(&TICKET).err(), Some(LaneError::Order));
    assert_eq!(answerer.answer(Code::Done, 0), Err(LaneError::Order));
    let message = caller.read(read(1)).unwrap();
    assert_eq!(caller.read(read(2)), Err(LaneError::Order));
    assert_eq!(
        answerer.decode_request(&message[LENGTH_BYTES..]),
        Ok(LaneRequest::Read(read(1)))
    );
    assert_eq!(
        answerer.decode_request(&message[LENGTH_BYTES..]),
        Err(LaneError::Order),
        "not answered yet"
    );
    let head = answerer.answer(Code::OverRate, 0).unwrap();
    let told = Head {
        code: Code::OverRate,
        len: 0,
    };
    assert_eq!(caller.decode_head(&head), Ok(told));
    assert_eq!(
        caller.decode_head(&head),
        Err(LaneError::Order),
        "nothing is asked"
    );
    assert_eq!(
        answerer.decode_request(&message[LENGTH_BYTES..]),
        Err(LaneError::Message),
        "repeated"
    );
}

#[test]
fn nothing_is_asked_before_the_donor_has_welcomed() {
    let keys = Keys::new(&[5; 32], &TICKET);
    let mut caller = Caller::new(&keys);
    assert_eq!(caller.read(read(1)), Err(LaneError::Order));
    caller.opening(&TICKET).unwrap();
    assert_eq!(caller.read(read(1)), Err(LaneError::Order));
}

#[test]
fn an_answer_has_the_length_that_was_asked_for() {
    for (code, len, fits) in [
        (Code::Done, 2, true),
        (Code::Done, 1, false),
        (Code::Done, 3, false),
        (Code::OutOfRange, 0, true),
        (Code::OutOfRange, 2, false),
    ] {
        let (mut caller, mut answerer) = pair();
        let message = caller.read(read(1)).unwrap();
        answerer.decode_request(&message[LENGTH_BYTES..]).unwrap();
        let head = answerer.answer(code, len).unwrap();
        assert_eq!(caller.decode_head(&head).is_ok(), fits, "{code:?} {len}");
    }
}

const PAIR: QueuePair = QueuePair {
    number: 0x12_3456,
    psn: 0xff_ffff,
    gid: [9; 16],
    lid: 7,
    mtu: 5,
    reads: 16,
};

#[test]
fn a_queue_pair_is_joined_and_a_slab_exposed() {
    let (mut caller, mut answerer) = pair();
    let message = caller.join(&PAIR).unwrap();
    assert_eq!(
        answerer.decode_request(&message[LENGTH_BYTES..]),
        Ok(LaneRequest::Join(PAIR))
    );
    let other = QueuePair { number: 1, ..PAIR };
    let given = other.to_bytes();
    let head = answerer.answer_with_tail(&given).unwrap();
    assert_eq!(tail_bytes(&head), TAIL_BYTES);
    let told = caller.decode_tail(&head, &given).unwrap();
    assert_eq!((told.code, told.len), (Code::Done, TAIL_BYTES as u32));
    assert_eq!(QueuePair::from_bytes(&given), Some(other));

    let message = caller.expose(u64::MAX - 1).unwrap();
    let asked = answerer.decode_request(&message[LENGTH_BYTES..]);
    assert_eq!(asked, Ok(LaneRequest::Expose(u64::MAX - 1)));
    let exposed = Exposed {
        address: 1 << 40,
        key: 77,
    };
    let given = exposed_to_bytes(&exposed);
    let head = answerer.answer_with_tail(&given).unwrap();
    caller.decode_tail(&head, &given).unwrap();
    assert_eq!(exposed_from_bytes(&given), exposed);

    // Refused: nothing follows.
    let message = caller.expose(5).unwrap();
    answerer.decode_request(&message[LENGTH_BYTES..]).unwrap();
    let head = answerer.answer(Code::NoPair, 0).unwrap();
    assert_eq!(tail_bytes(&head), 0);
    assert_eq!(caller.decode_head(&head).map(|h| h.code), Ok(Code::NoPair));
}

#[test]
fn what_follows_a_head_is_bound_into_it() {
    let (mut caller, mut answerer) = pair();
    let message = caller.join(&PAIR).unwrap();
    answerer.decode_request(&message[LENGTH_BYTES..]).unwrap();
    let given = PAIR.to_bytes();
    let head = answerer.answer_with_tail(&given).unwrap();
    for at in 0..TAIL_BYTES {
        let mut changed = given;
        changed[at] ^= 1;
        assert_eq!(caller.decode_tail(&head, &changed), Err(LaneError::Message));
    }
    assert_eq!(
        caller.decode_head(&head),
        Err(LaneError::Message),
        "left out"
    );
    assert!(caller.decode_tail(&head, &given).is_ok());
    // The same number of data bytes is not taken for it.
    let message = caller.expose(1).unwrap();
    answerer.decode_request(&message[LENGTH_BYTES..]).unwrap();
    let head = answerer.answer(Code::Done, TAIL_BYTES as u32).unwrap();
    assert_eq!(caller.decode_tail(&head, &given), Err(LaneError::Message));
}

#[test]
fn a_message_of_another_length_is_none() {
    let (mut caller, _) = pair();
    let message = caller.join(&PAIR).unwrap();
    let (_, mut answerer) = pair();
    for len in 0..JOIN_BYTES {
        assert!(
            answerer
                .decode_request(&message[LENGTH_BYTES..][..len])
                .is_err()
        );
    }
    let mut longer = message.to_vec();
    longer.push(0);
    assert_eq!(
        answerer.decode_request(&longer[LENGTH_BYTES..]),
        Err(LaneError::Form)
    );
    assert!(answerer.decode_request(&message[LENGTH_BYTES..]).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever an attacker does to one message or head, it does not verify, and nothing panics.
    #[test]
    fn what_is_changed_does_not_open(
        before in 0u32..5, at in 0usize..MESSAGE_BYTES, bit in 0u8..8, answer: bool,
    ) {
        let (mut caller, mut answerer) = pair();
        for n in 0..before {
            let message = caller.read(read(n)).unwrap();
            prop_assert_eq!(answerer.decode_request(&message[LENGTH_BYTES..]), Ok(LaneRequest::Read(read(n))));
            let head = answerer.answer(Code::Done, n + 1).unwrap();
            prop_assert!(caller.decode_head(&head).is_ok());
        }
        let mut message = caller.read(read(9)).unwrap();
        if answer {
            answerer.decode_request(&message[LENGTH_BYTES..]).unwrap();
            let mut head = answerer.answer(Code::Done, 10).unwrap();
            head[at] ^= 1 << bit;
            prop_assert_eq!(caller.decode_head(&head), Err(LaneError::Message));
        } else {
            message[LENGTH_BYTES + at] ^= 1 << bit;
            prop_assert_eq!(answerer.decode_request(&message[LENGTH_BYTES..]), Err(LaneError::Message));
        }
    }

    /// Arbitrary bytes are refused, whatever comes before them.
    #[test]
    fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let (_, mut answerer) = pair();
        prop_assert!(answerer.decode_request(&bytes).is_err());
        prop_assert_eq!(ticket(&bytes).is_some(), bytes.len() == MESSAGE_BYTES);
        let keys = Keys::new(&[5; 32], &TICKET);
        prop_assert!(Answerer::admit(&keys, &bytes).is_err());
    }

    /// In whatever order recorded messages come, each is accepted once, and in its order.
    #[test]
    fn recorded_messages_are_taken_once(order in prop::collection::vec(0usize..6, 1..30)) {
        let (mut caller, mut answerer) = pair();
        let keys = Keys::new(&[5; 32], &TICKET);
        let mut model = Answerer::admit(&keys, &Caller::new(&keys).opening(&TICKET).unwrap()[2..]).unwrap();
        model.answer(Code::Done, 0).unwrap();
        let mut recorded = Vec::new();
        for n in 0..6 {
            let message = caller.read(read(n)).unwrap();
            model.decode_request(&message[LENGTH_BYTES..]).unwrap();
            caller.decode_head(&model.answer(Code::Done, n + 1).unwrap()).unwrap();
            recorded.push(message);
        }
        let mut due = 0;
        for n in order {
            let taken = answerer.decode_request(&recorded[n][LENGTH_BYTES..]);
            prop_assert_eq!(taken.is_ok(), n == due);
            if taken.is_ok() {
                answerer.answer(Code::Done, 0).unwrap();
                due += 1;
            }
        }
    }
}
