//! Fixed-size fields, written to and read from headers whose size is known.

/// Writes fields one after the other.
///
/// Its caller has checked that the buffer is as long as the header; running past its end would be a wrong byte table, which the
/// golden-bytes tests show.
pub(super) struct Writer<'a> {
    left: &'a mut [u8],
}

impl<'a> Writer<'a> {
    pub(super) fn new(header: &'a mut [u8]) -> Self {
        Self { left: header }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let (field, left) = std::mem::take(&mut self.left).split_at_mut(bytes.len());
        field.copy_from_slice(bytes);
        self.left = left;
        self
    }

    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn reserved(&mut self, bytes: usize) -> &mut Self {
        let (field, left) = std::mem::take(&mut self.left).split_at_mut(bytes);
        field.fill(0);
        self.left = left;
        self
    }
}

/// Reads fields one after the other, and notes whether the reserved ones are 0. The same holds for its size as for [`Writer`]'s.
pub(super) struct Reader<'a> {
    left: &'a [u8],
    reserved_is_zero: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(header: &'a [u8]) -> Self {
        Self { left: header, reserved_is_zero: true }
    }

    pub(super) fn array<const N: usize>(&mut self) -> [u8; N] {
        let (field, left) = self.left.split_at(N);
        self.left = left;
        let mut array = [0; N];
        array.copy_from_slice(field);
        array
    }

    pub(super) fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub(super) fn reserved(&mut self, bytes: usize) {
        let (field, left) = self.left.split_at(bytes);
        self.left = left;
        self.reserved_is_zero &= field.iter().all(|&byte| byte == 0);
    }

    /// Whether every reserved field so far was 0.
    pub(super) fn reserved_is_zero(&self) -> bool {
        self.reserved_is_zero
    }
}
