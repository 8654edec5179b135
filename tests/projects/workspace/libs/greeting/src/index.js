export const greet = (name) => `Good day, ${name}`;
