// Numbers as the pages' tables have them: three digits that count.
export function significant(value) {
  const digits = { minimumSignificantDigits: 3, maximumSignificantDigits: 3 };
  return value.toLocaleString("en-US", Math.abs(value) >= 1000 ? { maximumFractionDigits: 0 } : digits);
}

export const percent = (share) => `${Math.round(100 * share)}%`;
