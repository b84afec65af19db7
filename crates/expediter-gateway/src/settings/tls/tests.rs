use super::*;

#[test]
fn a_pair_that_fits_is_taken_and_its_key_is_not_printed() {
    let identity = TlsIdentity::from_pem(CERTIFICATE.as_bytes(), KEY.as_bytes()).unwrap();
    assert_eq!(format!("{identity:?}"), "TlsIdentity(1 certificates)");
    assert_eq!(identity.certified_key().cert.len(), 1);
}

#[test]
fn a_pair_that_does_not_fit_is_refused() {
    let cases = [
        ("no certificate", "", KEY, "the file holds no readable PEM certificate"),
        ("the files are swapped", KEY, CERTIFICATE, "the file holds no readable PEM certificate"),
        ("half a certificate", &CERTIFICATE[..200], KEY, "the file holds no readable PEM certificate"),
        ("no key", CERTIFICATE, CERTIFICATE, "the file holds no readable PEM private key"),
        (
            "the key of another",
            CERTIFICATE,
            OTHER_KEY,
            "certificate and key do not fit: keys may not be consistent: KeyMismatch",
        ),
    ];
    for (name, certificate, key, expected) in cases {
        let error = TlsIdentity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), expected, "{name}");
    }
}

/// Made for this test: `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500`.
const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBhTCCASugAwIBAgIUDzFCGNpEujbwNpZGArmvLDGc0EAwCgYIKoZIzj0EAwIw
FzEVMBMGA1UEAwwMZ2F0ZXdheS50ZXN0MCAXDTI2MTEzMDIxNTYzNFoYDzIxMjYx
MTA2MjE1NjM0WjAXMRUwEwYDVQQDDAxnYXRld2F5LnRlc3QwWTATBgcqhkjOPQIB
BggqhkjOPQMBBwNCAATP61K/rqdSszI4pbKveToDImsOi8aSK9o3URuq2u1piryo
NcoGNHxKcthoMZVPHLcqWCH2zh2g8MGIqCCtyk6Io1MwUTAdBgNVHQ4EFgQU1w9L
21arShb79P98mP49dluaaHAwHwYDVR0jBBgwFoAU1w9L21arShb79P98mP49dlua
aHAwDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiAIMXmKHKh/LNJ7
qEc45Vpk1gPgBmajkP44XE+i7ik27AIhAKazI6nbvB+ex8mnmxYTB1duWVDx+c3K
kjmuVFlQtzw6
-----END CERTIFICATE-----
";

/// The key of `CERTIFICATE`.
const KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQghIVaXYGhkIhn7taG
PRcGfg7j85vttpSCivgep/7nVPShRANCAATP61K/rqdSszI4pbKveToDImsOi8aS
K9o3URuq2u1piryoNcoGNHxKcthoMZVPHLcqWCH2zh2g8MGIqCCtyk6I
-----END PRIVATE KEY-----
";

/// A key that belongs to nothing.
const OTHER_KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgF49fvc4QX4siVbeA
+lwp8eSxBlxW51HTHjD5VQXTO7ehRANCAAQPJbWVOyAjr3YP+8mnI6Y4lmt+IfDU
5ME7naUlddkBFhjQ2u3dWriPZLOQPl8B1jhH/uFjjdvIOOk7pDSStLmA
-----END PRIVATE KEY-----
";
