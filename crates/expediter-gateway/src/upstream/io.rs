//! The socket to a replica, plain or TLS.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A connected byte stream to a replica.
pub(crate) enum UpstreamIo {
    /// Plain TCP.
    Plain(TcpStream),
    /// TLS over TCP; boxed, since its state is thousands of bytes and most fleets use none.
    Tls(Box<TlsStream<TcpStream>>),
}

impl UpstreamIo {
    /// Reads what is there, at most `buffer` full. 0 means that the replica ended its side.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut read = ReadBuf::new(buffer);
        match self {
            Self::Plain(stream) => ready!(Pin::new(stream).poll_read(cx, &mut read))?,
            Self::Tls(stream) => ready!(Pin::new(stream).poll_read(cx, &mut read))?,
        }
        Poll::Ready(Ok(read.filled().len()))
    }

    /// Writes some of `slices` in one call where the transport can.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    /// Passes on what TLS still holds.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    /// Whether an idle connection is still usable: nothing to read, not even an end. Bytes that nobody asked
    /// for make a connection as useless as its end.
    pub(crate) fn is_quiet(&self) -> bool {
        let socket = match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        };
        // The runtime's own view may be older than the socket's: ask the kernel.
        let mut byte = [MaybeUninit::uninit(); 1];
        matches!(SockRef::from(socket).peek(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}
