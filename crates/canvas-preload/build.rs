//! Linker flags of the preload library.

fn main() {
    // Bind at load time: lazy binding in the fault handler would walk heap memory that may be far.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,relro");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Run before the constructors of allocators, so that their memory is managed.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcanvas.so");
}
