//! The messages and the service, generated from `proto/` by the test `described.rs`.
//!
//! The crate envoy-types has them too, among thousands of other messages that take a minute to
//! compile.
#![expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    unreachable_pub,
    reason = "generated code"
)]

pub mod envoy {
    pub mod config {
        pub mod core {
            pub mod v3 {
                include!("pb/envoy.config.core.v3.rs");
            }
        }
    }
    pub mod extensions {
        pub mod common {
            pub mod ratelimit {
                pub mod v3 {
                    include!("pb/envoy.extensions.common.ratelimit.v3.rs");
                }
            }
        }
    }
    pub mod service {
        pub mod ratelimit {
            pub mod v3 {
                include!("pb/envoy.service.ratelimit.v3.rs");
            }
        }
    }
    pub mod r#type {
        pub mod v3 {
            include!("pb/envoy.r#type.v3.rs");
        }
    }
}
