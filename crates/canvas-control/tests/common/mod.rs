//! What the command must do with any bytes that come over a control socket or the host agent's.
//! Part of this crate's tests and of the fuzz target `control`.

use canvas_control::hello;
use canvas_control::wire::{self, Ask, Request};
use canvas_types::units::{Amount, Size, Span};

/// The first byte selects sender and receiver: to a run, from a run, to the host's agent, or from
/// it.
pub fn control_any(bytes: &[u8]) {
    let Some((&to, rest)) = bytes.split_first() else {
        return;
    };
    match to % 4 {
        0 => {
            let Ok(request) = Request::decode(rest) else {
                return;
            };
            let again = serde_json::to_vec(&request).unwrap();
            assert_eq!(Request::decode(&again).as_ref(), Ok(&request));
            if let Ask::Set(pairs) = request.ask {
                for (_, value) in pairs {
                    written_again(value.parse::<Size>(), |size| size.to_string().parse());
                    written_again(value.parse::<Amount>(), |amount| amount.to_string().parse());
                    written_again(value.parse::<Span>(), |span| span.to_string().parse());
                }
            }
        }
        1 => {
            if let Ok(answer) = serde_json::from_slice::<wire::Answer>(rest) {
                let text = serde_json::to_string(&answer).unwrap();
                let again: wire::Answer = serde_json::from_str(&text).unwrap();
                assert_eq!(serde_json::to_string(&again).unwrap(), text);
            }
        }
        2 => {
            if let Ok(ask) = hello::Ask::decode(rest) {
                assert_eq!(hello::Ask::decode(&ask.encode()), Ok(ask));
            }
        }
        _ => {
            if let Ok(answer) = hello::Answer::decode(rest) {
                assert_eq!(hello::Answer::decode(&answer.encode()), Ok(answer));
            }
        }
    }
}

/// What decodes can be encoded, and decodes to the same value.
fn written_again<T: PartialEq + std::fmt::Debug, E>(
    read: Result<T, E>,
    write: impl Fn(&T) -> Result<T, E>,
) {
    if let Ok(value) = read {
        assert!(write(&value).is_ok_and(|again| again == value), "{value:?}");
    }
}
